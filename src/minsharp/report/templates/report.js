"use strict";
(() => {
  const root = document.documentElement;
  const button = document.querySelector("button.theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const remembered = () => { try { return localStorage.getItem("minsharp-theme"); } catch { return null; } };
  const remember = (theme) => { try { localStorage.setItem("minsharp-theme", theme); } catch { /* a page from disk may not */ } };
  const dark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const label = () => {
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-label", dark() ? "Use the light theme" : "Use the dark theme");
  };
  if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    remember(root.dataset.theme);
    label();
  });
  system.addEventListener("change", label);
  label();

  for (const plot of document.querySelectorAll(".plot")) {
    const tip = plot.querySelector(".tip");
    const points = [...plot.querySelectorAll(".point")];
    for (const point of points) point.querySelector("title")?.remove();
    let at = -1;
    const hide = () => {
      tip.classList.remove("shown");
      points[at]?.classList.remove("active");
    };
    const show = (index) => {
      hide();
      at = index;
      const point = points[at], area = plot.getBoundingClientRect(), box = point.getBoundingClientRect();
      point.classList.add("active");
      tip.textContent = point.dataset.words;
      const room = plot.clientWidth - tip.offsetWidth;
      const x = box.left + box.width / 2 - area.left + plot.scrollLeft;
      tip.style.left = `${Math.max(plot.scrollLeft, Math.min(x - tip.offsetWidth / 2, room + plot.scrollLeft))}px`;
      const above = box.top - area.top - tip.offsetHeight - 8;
      tip.style.top = `${above > 0 ? above : box.bottom - area.top + 8}px`;
      tip.classList.add("shown");
    };
    plot.addEventListener("pointerover", (event) => {
      const point = event.target.closest?.(".point");
      if (point) show(points.indexOf(point)); else hide();
    });
    plot.addEventListener("pointerleave", hide);
    plot.addEventListener("blur", hide);
    plot.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") hide();
      else if (event.key === "Home") { event.preventDefault(); show(0); }
      else if (event.key === "End") { event.preventDefault(); show(points.length - 1); }
      else if (step) {
        event.preventDefault();
        show(at < 0 ? (step > 0 ? 0 : points.length - 1) : (at + step + points.length) % points.length);
      }
    });
  }
  addEventListener("beforeprint", () => { for (const d of document.querySelectorAll("details")) d.open = true; });
})();
