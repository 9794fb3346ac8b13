// Set the colours before anything is drawn, so that nothing flashes.
{
  const choice = localStorage.getItem("theme");
  if (choice === "light" || choice === "dark") document.documentElement.dataset.theme = choice;
  document.documentElement.classList.add("script");
}
