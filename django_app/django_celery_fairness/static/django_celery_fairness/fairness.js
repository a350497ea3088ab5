// Fetches the part of a page that changes while the page is visible, and checks rows of a list.
(() => {
  "use strict";
  const EVERY_MS = 2000;
  const options = { credentials: "same-origin", redirect: "error", headers: { "X-Fairness": "live" } };
  const page = document.querySelector(".fairness-page");
  const live = document.getElementById("fairness-live");
  const lost = document.getElementById("fairness-lost");

  for (const all of document.querySelectorAll("[data-checks]")) {
    all.addEventListener("change", () => {
      for (const box of document.querySelectorAll(all.dataset.checks)) box.checked = all.checked;
    });
  }

  // A name may go on in the next line after a mark between two of its words. Else a narrow column breaks the words.
  const breakable = (element) => {
    for (const node of Array.from(element.childNodes)) {
      if (node.nodeType === Node.ELEMENT_NODE) breakable(node);
      if (node.nodeType !== Node.TEXT_NODE) continue;
      const parts = node.textContent.split(/(?<=[^\s\d][_.:@/])(?=[^\s])/);
      if (parts.length > 1) node.replaceWith(...parts.flatMap((part) => [part, document.createElement("wbr")]).slice(0, -1));
    }
  };

  // On a narrow screen a row stands as a block, and each cell has the head of its column.
  const label = () => {
    for (const cell of document.querySelectorAll(".fairness-page tbody :is(th, td)")) breakable(cell);
    for (const table of document.querySelectorAll(".fairness-page table")) {
      const heads = Array.from(table.querySelectorAll("thead th"), (head) => head.textContent.trim());
      for (const row of table.querySelectorAll("tbody tr")) {
        Array.from(row.children).forEach((cell, index) => {
          cell.dataset.head = heads[index] || "";
          cell.setAttribute("role", cell.tagName === "TH" ? "rowheader" : "cell");
        });
        row.setAttribute("role", "row");
      }
      table.setAttribute("role", "table");
      table.classList.add("labelled");
    }
  };
  label();
  if (!page || !page.dataset.liveUrl) return;

  // Keep what a person scrolled or focused: a new part must not move it.
  const replace = (html) => {
    const name = (element) =>
      element.getAttribute("href") || element.getAttribute("aria-labelledby") || element.getAttribute("aria-label");
    const all = (of) => Array.from(live.querySelectorAll(of));
    const before = new Map(all(".fairness-scroll").map((region) => [name(region), region.scrollLeft]));
    const active = live.contains(document.activeElement) ? document.activeElement : null;
    // Two tables may have the same link.
    const alike = () => all("a[href], .fairness-scroll").filter((element) => name(element) === name(active));
    const place = active ? alike().indexOf(active) : -1;
    live.innerHTML = html;
    label();
    // Buttons that have nothing to end now are off.
    const off = live.querySelector("[data-off]")?.dataset.off.split(" ");
    for (const button of off ? page.querySelectorAll("button[name=action]") : []) button.disabled = off.includes(button.value);
    for (const region of all(".fairness-scroll")) region.scrollLeft = before.get(name(region)) || 0;
    if (place >= 0) (alike()[place] || alike()[0])?.focus({ preventScroll: true });
  };

  const refresh = async () => {
    if (document.visibilityState !== "visible") return;
    try {
      const answer = await fetch(page.dataset.liveUrl, options);
      if (!answer.ok) throw new Error(String(answer.status));
      replace(await answer.text());
      lost.hidden = true;
    } catch (error) {
      lost.textContent = page.dataset.lost;
      lost.hidden = false;
    }
  };

  const loop = async () => {
    await refresh();
    setTimeout(loop, EVERY_MS);
  };
  setTimeout(loop, EVERY_MS);
  document.addEventListener("visibilitychange", refresh);
})();
