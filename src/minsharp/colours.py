"""The one palette: Okabe and Ito's, which readers with any colour vision can tell apart."""

BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, GREY = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#666666"),
)
SERIES = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)
"""For lines and marks that are told apart, in the order in which they are used."""
