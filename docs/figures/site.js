// Tables and figures that are scrolled sideways can be reached, and scrolled, with the keyboard.
window.addEventListener("load", () => {
  const mark = () => {
    for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset p:has(> img)")) {
      if (box.scrollWidth > box.clientWidth) {
        box.tabIndex = 0;
        box.setAttribute("role", "group");
        box.setAttribute("aria-label", "Wider than the page: scrolls sideways");
      }
    }
  };
  mark();
  window.addEventListener("resize", mark);
});
