// A button in the corner of each block of commands or files: it copies the text of the block.
"use strict";

function copyText(text) {
  if (navigator.clipboard && window.isSecureContext) {
    return navigator.clipboard.writeText(text);
  }
  const area = document.createElement("textarea"); // a page that was opened from plain HTTP
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  return copied ? Promise.resolve() : Promise.reject(new Error("the browser refused"));
}

document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("div.highlight")) {
    const text = block.querySelector("pre").textContent;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy-block";
    button.textContent = "copy";
    button.addEventListener("click", async () => {
      try {
        await copyText(text);
        button.textContent = "copied";
      } catch {
        button.textContent = "select the text";
      }
      setTimeout(() => (button.textContent = "copy"), 1500);
    });
    block.append(button);
  }
});
