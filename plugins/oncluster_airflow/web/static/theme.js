// Before anything is painted: within Airflow the page has Airflow's theme, alone that of the system.
"use strict";
(() => {
  const root = document.documentElement;
  const frame = () => {
    try {
      return window.parent === window ? null : window.parent.document.documentElement;
    } catch {
      return null; // framed by another origin: nothing is known of its theme
    }
  };
  const airflow = frame();
  const take = () => {
    const dark = airflow.classList.contains("dark");
    const light = airflow.classList.contains("light");
    if (dark || light) root.dataset.theme = dark ? "dark" : "light";
  };
  if (airflow) {
    root.dataset.framed = "";
    take();
    new MutationObserver(take).observe(airflow, { attributes: true, attributeFilter: ["class"] });
  }
})();
