// Dark or light: as the system says until somebody chooses, and again when he takes it back.

const NAMES = { auto: "◐ system", light: "☀ light", dark: "☾ dark" };
const ORDER = ["auto", "light", "dark"];
const KEPT = "gpushare-theme";

function kept() {
  try {
    const found = localStorage.getItem(KEPT);
    return ORDER.includes(found) ? found : "auto";
  } catch {
    return "auto"; // storage may be switched off
  }
}

export function switchedBy(button) {
  let theme = kept();
  const show = () => {
    document.documentElement.dataset.theme = theme;
    button.textContent = NAMES[theme];
    button.setAttribute("aria-label", `Colours: ${theme === "auto" ? "as the system" : theme}`);
  };
  button.addEventListener("click", () => {
    theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
    try {
      localStorage.setItem(KEPT, theme);
    } catch {
      // it holds until the page is left
    }
    show();
  });
  show();
}
