/* Tells the page's handler what the lanes of the timeline call their speakers: all of them, so that
   the last event is enough where several come at once. */
element.addEventListener("change", () => {
  const lanes = [...element.querySelectorAll("[data-speaker]")];
  const names = Object.fromEntries(lanes.map((lane) => [lane.dataset.speaker, lane.value]));
  trigger("rename", { names: names });
});
element.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.dataset.speaker) event.target.blur();
});
