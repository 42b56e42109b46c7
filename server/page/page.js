/* Plays what is clicked: whatever carries data-at (seconds) moves the player there. Listeners are
   the document's, because the transcript is replaced while it grows. Media events do not bubble and
   are therefore captured. */
() => {
  const player = () => document.getElementById("player");
  const words = () => [...document.querySelectorAll("#transcript [data-at][data-to]")];

  const play = (item) => {
    const audio = player();
    if (!audio) return;
    audio.currentTime = Number(item.dataset.at);
    audio.play().catch(() => {});
  };

  document.addEventListener("click", (event) => {
    const item = event.target.closest("[data-at]");
    if (item) play(item);
  });

  const neighbour = (item, step) => {
    const all = words();
    if (!item.dataset.to) {
      const first = item.parentElement.querySelector("[data-to]");
      return step > 0 ? first : all[all.indexOf(first) - 1];
    }
    return all[all.indexOf(item) + step];
  };

  document.addEventListener("keydown", (event) => {
    const item = event.target.closest("#transcript [data-at]");
    if (!item) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      play(item);
    }
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next = step && neighbour(item, step);
    if (next) {
      event.preventDefault();
      next.focus();
    }
  });

  const mark = (audio) => {
    const now = audio.currentTime;
    document.querySelectorAll("#transcript .now").forEach((each) => each.classList.remove("now"));
    const spoken = words().find((each) => each.dataset.at <= now && now < each.dataset.to);
    if (spoken) spoken.classList.add("now");
    const timeline = document.querySelector(".timeline");
    if (timeline) timeline.style.setProperty("--now", now / timeline.dataset.duration);
  };

  for (const name of ["timeupdate", "seeked", "play"])
    document.addEventListener(name, (event) => {
      if (event.target === player()) mark(event.target);
    }, true);

  document.addEventListener("error", (event) => {
    if (event.target === player())
      event.target.title = "This browser cannot play the recording's format";
  }, true);
}
