"use strict";
(() => {
  const form = document.getElementById("filter");
  const [query, only] = form.querySelectorAll("input");
  const told = form.querySelector("output");
  const items = [...document.querySelectorAll("[data-item]")];
  const groups = [...document.querySelectorAll("[data-group]")].map((group) => ({
    group,
    open: group.open,
    items: [...group.querySelectorAll("[data-item]")],
  }));
  const texts = new Map();
  const text = (item) => {
    if (!texts.has(item)) {
      let all = item.textContent;
      for (let up = item.closest("[data-group]"); up; up = up.parentElement.closest("[data-group]")) {
        all += " " + up.querySelector("summary").textContent;
      }
      texts.set(item, all.toLowerCase());
    }
    return texts.get(item);
  };
  const hide = (element, hidden) => element.toggleAttribute("data-hidden", hidden);
  const filter = () => {
    const words = query.value.toLowerCase().split(/\s+/).filter(Boolean);
    const active = words.length > 0 || only.checked;
    let shown = 0;
    for (const item of items) {
      const fits = (!only.checked || item.hasAttribute("data-bad")) && words.every((word) => text(item).includes(word));
      hide(item, !fits);
      shown += fits;
    }
    for (const { group, open, items } of groups) {
      const fits = items.filter((item) => !item.hasAttribute("data-hidden")).length;
      hide(group, active && fits === 0);
      group.open = active ? fits > 0 && shown <= 500 : open;
    }
    told.textContent = active ? `${shown} of ${items.length} shown` : "";
  };
  const follow = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let up = target; up; up = up.parentElement) {
      if (up.tagName === "DETAILS") up.open = true;
    }
    target.scrollIntoView();
  };
  let wait;
  query.addEventListener("input", () => {
    clearTimeout(wait);
    wait = setTimeout(filter, 100);
  });
  only.addEventListener("change", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", follow);
  form.hidden = false;
  follow();
})();
