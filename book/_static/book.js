// Small repairs for those who read with a keyboard or a screen reader.

function makeScrollable() {
  // A box that scrolls must be reachable by keyboard, and only such a box.
  for (const box of document.querySelectorAll(
    "figure.picture, .table-box, .math-scroll, .cell_output > .output, .copy-box pre"
  )) {
    if (box.scrollWidth > box.clientWidth + 1) {
      box.tabIndex = 0;
      if (!box.hasAttribute("role")) box.setAttribute("role", "group");
      if (!box.hasAttribute("aria-label")) box.setAttribute("aria-label", "Scrolls sideways");
    } else {
      box.removeAttribute("tabindex");
    }
  }
}

document.addEventListener("DOMContentLoaded", () => {
  for (const summary of document.querySelectorAll(".bd-sidebar-primary summary")) {
    const link = summary.closest("li")?.querySelector(":scope > a");
    summary.setAttribute("aria-label", `Pages under ${link?.textContent.trim() ?? "this"}`);
  }
  // The words that are seen are the name: "Show the solution", not "Toggle hidden content".
  for (const summary of document.querySelectorAll("details.hide > summary")) {
    summary.removeAttribute("aria-label");
  }
  // docutils calls the bibliography a list, but its entries are no list items.
  for (const part of document.querySelectorAll(".citation-list, .citation")) {
    part.removeAttribute("role");
  }
  makeScrollable();
  window.addEventListener("resize", makeScrollable);
});
