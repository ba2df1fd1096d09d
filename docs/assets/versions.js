/** The selector of versions, which `versions.js` in the folder above lists (a script, so that it is read without a server too), and tables
 * that can be scrolled by keyboard. */
(() => {
  "use strict";
  const root = new URL("..", document.currentScript.src);
  const list = document.createElement("script");
  list.src = new URL("../versions.js", root).href;
  list.onload = () => {
    const versions = window.documentationVersions ?? [];
    const header = document.querySelector(".md-header__topic");
    document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
    if (versions.length < 1 || !header) return;
    const select = document.createElement("select");
    select.className = "versions";
    select.setAttribute("aria-label", "Version");
    const here = root.pathname.split("/").at(-2);
    for (const version of versions) select.add(new Option(version, version, false, version === here));
    select.addEventListener("change", () => {
      location.href = new URL(`../${select.value}/index.html`, root).href;
    });
    header.append(select);
  };
  document.head.append(list);
  // Tables that are wider than the screen can be scrolled by keyboard too.
  const focusable = () => {
    for (const wrap of document.querySelectorAll(".md-typeset__scrollwrap")) {
      if (wrap.scrollWidth > wrap.clientWidth) {
        wrap.tabIndex = 0;
        wrap.setAttribute("role", "region");
        wrap.setAttribute("aria-label", "Table");
      } else wrap.removeAttribute("tabindex");
    }
  };
  addEventListener("load", focusable);
  addEventListener("resize", focusable);
})();
