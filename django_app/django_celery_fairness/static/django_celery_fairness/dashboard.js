// Fetches the live part of the dashboard while the page is visible.
(() => {
  "use strict";
  const EVERY_MS = 2000;
  const page = document.querySelector(".fairness-dashboard");
  const live = document.getElementById("fairness-live");
  const lost = document.getElementById("fairness-lost");

  // Keep what a person scrolled or focused: a new part must not move it.
  const replace = (html) => {
    const regions = () => Array.from(live.querySelectorAll(".fairness-scroll"));
    const label = (region) => region.getAttribute("aria-labelledby");
    const before = new Map(regions().map((region) => [label(region), region.scrollLeft]));
    const focused = live.contains(document.activeElement) ? label(document.activeElement) : null;
    live.innerHTML = html;
    for (const region of regions()) {
      region.scrollLeft = before.get(label(region)) || 0;
      if (focused && label(region) === focused) region.focus({ preventScroll: true });
    }
  };

  const refresh = async () => {
    if (document.visibilityState !== "visible") return;
    try {
      const answer = await fetch(page.dataset.liveUrl, { credentials: "same-origin", redirect: "error" });
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
