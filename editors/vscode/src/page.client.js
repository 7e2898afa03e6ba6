// Runs in a webview: replaces the page's content, and reports choices and clicks to the extension.
const editor = acquireVsCodeApi();
const main = document.querySelector("main");
const status = document.querySelector("#status");

addEventListener("message", ({ data }) => {
  if (data.progress && main.firstChild) return; // the previous page stays until the next one arrives
  status.textContent = data.progress ?? data.note ?? "";
  status.hidden = !status.textContent;
  if (data.html === undefined) return;
  const active = document.activeElement?.id;
  const open = [...main.querySelectorAll("details[open]")].map(({ id }) => id);
  document.querySelector("#style").textContent = data.style;
  main.innerHTML = data.html; // the server has escaped every name in it
  for (const id of open) document.getElementById(id)?.setAttribute("open", "");
  if (active) document.getElementById(active)?.focus();
});

main.addEventListener("change", ({ target }) => {
  if (target.form) editor.postMessage({ choice: Object.fromEntries(new FormData(target.form)) });
});

main.addEventListener("click", (event) => {
  const link = event.target.closest("a, [data-command]");
  if (!link) return;
  event.preventDefault();
  event.stopPropagation();
  const { command } = link.dataset;
  if (command) editor.postMessage({ command });
  else if (link.download) editor.postMessage({ save: link.download, text: decodeURIComponent(link.href.replace(/^[^,]*,/, "")) });
});

editor.postMessage({ ready: true });
