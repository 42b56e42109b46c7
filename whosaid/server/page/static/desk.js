/* Shows one record: what was found, its files, player, timeline and text, which can be corrected. */

import { byId, html, saveAs } from "./dom.js";
import { Editor } from "./editor.js";
import { fileOf, formatsOf } from "./files.js";
import { clock, count, stemOf } from "./format.js";
import { keyList, listenToKeys } from "./keys.js";
import { choose } from "./menu.js";
import { Player, STEP_S } from "./player.js";
import { cleanName } from "./speakers.js";
import { Timeline } from "./timeline.js";
import { Transcript } from "./transcript.js";

const UNNAMED = /^SPEAKER_\d+$/i; // no name for a voice
const LEAD_S = 1; // by which a doubtful word is played earlier

export class Desk {
  record = null; // what is shown: an entry with its answer
  info = null; // the answer of `GET /info`
  hasRecording = false; // at hand, to time a corrected text and to remember voices

  /**
   * `page.onChange` gets a function that returns the answer and the names as they are now,
   * `page.onAlign` the text that is to be timed by the recording, `page.onRemember` a speaker's label,
   * name and seconds alone. `page.layout()` has the parameters of files, or is null if they are wrong.
   */
  constructor(page) {
    this.page = page;
    const onSeek = (seconds) => this.player.playFrom(seconds);
    this.transcript = new Transcript(byId("transcript"));
    this.editor = new Editor(byId("transcript"), {
      onPlay: onSeek,
      onEdit: () => {
        this.#showTools();
        page.onChange(this.editor.snapshot());
      },
      onRefresh: () => this.#drawSpeakers(),
      onChoose: (...given) => this.#chooseSpeaker(...given),
    });
    this.timeline = new Timeline(byId("timeline"), { onSeek, onRename: this.#rename });
    this.player = new Player(byId("player"), (seconds) => {
      this.editor.mark(seconds);
      this.timeline.mark(seconds);
    });
    byId("undo").onclick = this.editor.undo;
    byId("redo").onclick = this.editor.redo;
    byId("doubt").onclick = () => this.#goToDoubt(1);
    byId("align").onclick = () => page.onAlign(this.editor.script);
    byId("hint").querySelector("dl").append(...keyList());
    listenToKeys((action) => this.#act(action));
  }

  show(record) {
    const { answer } = record;
    this.clear();
    this.record = record;
    const hasText = answer.chunks.length || answer.speakers.length;
    byId("summary").hidden = false;
    byId("align").hidden = !this.hasRecording;
    for (const id of ["hint", "tools"]) byId(id).hidden = !hasText;
    byId("notes").replaceChildren(...this.#notes().map((note) => html`<li class="notice">${note}</li>`));
    this.#showUnspoken(answer.unspoken ?? []);
    if (hasText) this.editor.show(answer, record.names);
    else {
      this.editor.clear(answer);
      const nothing = answer.unspoken ? "None of your text is spoken." : "No speech was found.";
      byId("transcript").append(html`<p class="quiet">${nothing}</p>`);
    }
    const downloads = formatsOf(answer).map((format) => {
      const onclick = () => this.#download(format);
      return html`<button id="download-${format}" class="small" onclick=${onclick}>${format.toUpperCase()}</button>`;
    });
    byId("downloads").replaceChildren(byId("downloads").firstElementChild, ...downloads);
    this.#drawSpeakers();
    this.#showTools();
    this.page.announce(`Done: ${byId("found").textContent}.`);
  }

  clear() {
    for (const id of ["summary", "timeline", "hint", "empty", "tools"]) byId(id).hidden = true;
    byId("same-name").close();
    this.editor.clear();
    this.transcript.clear();
  }

  #showTools() {
    // A disabled button would lose the focus.
    const [undos, redos] = this.editor.depths;
    byId("undo").ariaDisabled = undos ? null : "true";
    byId("redo").ariaDisabled = redos ? null : "true";
  }

  /** Draw what depends on who speaks, and how many words are doubtful. */
  #drawSpeakers() {
    const { answer, speakers, doubts } = this.editor;
    const { seconds, isLive, answer: given } = this.record;
    const language = this.info.languages.find(({ code }) => code === given.language)?.name;
    const facts = [
      `${clock(given.duration)} of audio`,
      language ?? given.language,
      speakers.labels.length && count(speakers.labels.length, "speaker"),
      given.unspoken?.length === 0 && "all of your text is spoken",
      `${isLive ? "words after" : "ready in"} ${seconds.toFixed(1)} s`,
    ];
    byId("found").textContent = facts.filter(Boolean).join(" · ");
    this.timeline.draw(speakers, { ...given, ...answer });
    byId("doubt").hidden = !doubts;
    byId("doubt").textContent = `Next doubtful word (${doubts})`;
  }

  /** Why something is missing, and the server's warnings. */
  #notes() {
    const { answer, diarizes, isLive } = this.record;
    const said = answer.chunks.length && !answer.speakers.length;
    const missing = diarizes
      ? isLive
        ? "No speakers yet: Transcribe tells them apart in the recording, and follows all options."
        : "No speakers: nobody's voice could be told apart here."
      : this.info.diarization
        ? "No speakers: they were not asked for."
        : "No speakers: the server has no diarization model (--diarization).";
    const unknown = (answer.known_speakers ?? []).filter(({ matched }) => !matched);
    const notFound = `Not heard in this recording: ${unknown.map(({ name }) => name).join(", ")}.`;
    return [...(said ? [missing] : []), ...(unknown.length ? [notFound] : []), ...answer.warnings];
  }

  /** Show the parts of a given text that nobody says, with their places. */
  #showUnspoken(parts) {
    const list = byId("unspoken");
    list.hidden = !parts.length;
    list.open = true;
    list.firstElementChild.textContent = `Not spoken: ${count(parts.length, "part")} of your text`;
    const lines = parts.map(({ text, timestamp: [at] }) => {
      const onclick = () => this.player.playFrom(at);
      return html`
        <li>
          <button class="at" title="Play from here" onclick=${onclick}>${clock(at)}</button>
          <span dir="auto">${text.trim()}</span>
        </li>
      `;
    });
    list.lastElementChild.replaceChildren(...lines);
  }

  async #download(format) {
    const layout = this.page.layout();
    if (!layout) return;
    const { record: { file }, editor: { answer, names } } = this;
    try {
      const made = await fileOf(format, answer, names, { ...layout, recording_name: file });
      saveAs(`${stemOf(file) || "recording"}.${format}`, made);
    } catch (error) {
      this.page.onFailure(error);
    }
  }

  /** What a key stands for; whether that was possible. */
  #act(action) {
    const { player, editor } = this;
    const actions = {
      ...(player.source && {
        toggle: () => player.toggle(),
        back: () => player.skip(-STEP_S),
        on: () => player.skip(STEP_S),
        slower: () => player.changeSpeed(-1),
        faster: () => player.changeSpeed(1),
      }),
      ...(editor.isOpen() && {
        hear: () => editor.hear(),
        nextDoubtful: () => this.#goToDoubt(1),
        previousDoubtful: () => this.#goToDoubt(-1),
        choose: () => editor.choose(),
        Digit0: () => editor.give(null),
        ...Object.fromEntries(
          editor.speakers.labels.map((label, i) => [`Digit${i + 1}`, () => editor.give(label)]),
        ),
      }),
    };
    actions[action]?.();
    return Boolean(actions[action]);
  }

  #goToDoubt(direction) {
    const second = this.editor.selectDoubtful(direction);
    if (second === null) this.page.announce("No word is doubtful.");
    else this.player.playFrom(Math.max(0, second - LEAD_S));
  }

  #chooseSpeaker(place, current, give) {
    const { speakers } = this.editor;
    const choices = speakers.labels.map((label) => ({
      text: speakers.nameOf(label),
      colour: `name ${speakers.colourOf(label)}`,
      isCurrent: label === current,
      onChoose: () => give(label),
    }));
    choices.push({ text: "New speaker", onChoose: () => give(null) });
    const name = current && speakers.nameOf(current);
    if (name && !UNNAMED.test(name) && this.hasRecording && this.info.known_speakers) {
      const onChoose = () => this.page.onRemember(current, name, speakers.aloneIn(current));
      choices.push({ text: `Remember this voice as ${name}`, onChoose });
    }
    choose(place, choices, this.editor.focus);
  }

  /** Rename a speaker everywhere; returns the accepted name. Ask whether two of one name are one. */
  #rename = (label, name) => {
    const { editor } = this;
    const { labels } = editor.speakers;
    const [before, clean] = [editor.speakers.nameOf(label), cleanName(name) || label];
    const other = labels.find((each) => each !== label && editor.speakers.nameOf(each) === clean);
    byId("same-name").close();
    if (other) {
      byId("same-name-question").textContent =
        `Another speaker is called ${clean}. Are ${before} and ${clean} one person?`;
      byId("same").onclick = () => editor.unite(label, other);
      byId("same-name").show();
    } else if (clean !== before) editor.rename(label, clean);
    return editor.speakers.nameOf(label);
  };
}
