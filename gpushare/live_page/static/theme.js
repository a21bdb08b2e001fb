// Dark or light: the system's theme unless the user chooses one.

const NAMES = { auto: "◐ system", light: "☀ light", dark: "☾ dark" };
const ORDER = ["auto", "light", "dark"];
const KEPT = "gpushare-theme";

function kept() {
  try {
    const found = localStorage.getItem(KEPT);
    return ORDER.includes(found) ? found : "auto";
  } catch {
    return "auto"; // storage may be disabled
  }
}

export function switchTheme(button) {
  let theme = kept();
  const show = () => {
    document.documentElement.dataset.theme = theme;
    button.textContent = NAMES[theme];
    button.setAttribute("aria-label", `Theme: ${theme === "auto" ? "system" : theme}`);
  };
  button.addEventListener("click", () => {
    theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
    try {
      localStorage.setItem(KEPT, theme);
    } catch {
      // the choice lasts until the page is closed
    }
    show();
  });
  show();
}
