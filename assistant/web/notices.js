/** What can go wrong, in words that say what to do. */

/** Each: `title`, what happened; `advice`, what to do; `action`, the label of a button, if any. */
export const NOTICES = {
  insecure: {
    title: "Browsers allow microphone and sound on secure pages only.",
    advice: "Open this page over https, or as http://localhost on the machine that serves it. Here you can type, and read the answers.",
  },
  denied: {
    title: "The microphone is blocked for this page.",
    advice: "Allow it in the site settings, left of the address, then start it again. You can still type.",
    action: "Try again",
  },
  noMicrophone: {
    title: "No microphone was found.",
    advice: "Plug one in, or choose one in the system's sound settings, then try again. You can still type.",
    action: "Try again",
  },
  microphoneBusy: {
    title: "The microphone did not open.",
    advice: "Another program may be using it: close that one and try again. You can still type.",
    action: "Try again",
  },
  microphoneLost: {
    title: "The microphone is gone.",
    advice: "It was unplugged or taken away. Connect it and start again. You can still type.",
    action: "Start again",
  },
  soundBlocked: {
    title: "The browser holds the sound back.",
    advice: "Press the button to let the assistant speak.",
    action: "Turn on sound",
  },
  soundFailed: {
    title: "The sound could not be set up.",
    advice: "Reload the page. If it happens again, use a current Chrome, Edge, Firefox or Safari.",
  },
  loading: {
    title: "The assistant is still loading its models.",
    advice: "Leave this page open: it connects by itself when they are ready.",
    action: "Try now",
  },
  unreachable: {
    title: "The assistant cannot be reached.",
    advice: "See that the server runs (“assistant serve”) and that you are online. This page keeps trying.",
    action: "Try now",
  },
  refused: {
    title: "The assistant is running but did not accept this page.",
    advice: "It probably asks for a key: add #key=… to the address of this page and reload.",
    action: "Try now",
  },
  full: {
    title: "The assistant is talking to as many people as it can.",
    advice: "Leave this page open: it connects by itself when somebody leaves.",
    action: "Try now",
  },
  idle: {
    title: "The conversation was closed after a long silence.",
    advice: "A new one begins when you want it to.",
    action: "Begin again",
  },
  lost: {
    title: "The connection was lost.",
    advice: "This page is reconnecting by itself. A new conversation will begin.",
    action: "Try now",
  },
  serverError: {
    title: "The assistant reported a problem.",
    advice: "",
  },
  questionWaits: {
    title: "Your question waits in the box.",
    advice: "It is sent as soon as there is a connection.",
    action: "Try now",
  },
};

/** Shows one notice at a time; `clear` takes back only the notice it names. */
export class NoticeBoard {
  #element;
  #shown = null;

  constructor(element) {
    this.#element = element;
  }

  /** Show `NOTICES[name]`; `detail` is added as it is, `onAction` is called by its button. */
  show(name, { detail = "", onAction = null } = {}) {
    const { title, advice, action } = NOTICES[name];
    const said = `${name} ${detail}`;
    if (this.#shown === name && this.#element.dataset.said === said) return; // not announced twice
    this.#element.dataset.said = said;
    this.#shown = name;
    const button = action && onAction ? document.createElement("button") : null;
    if (button) {
      button.type = "button";
      button.className = "button";
      button.textContent = action;
      button.onclick = onAction;
    }
    const heading = document.createElement("strong");
    heading.textContent = title;
    const text = document.createElement("p");
    text.append(heading, " ", [advice, detail].filter(Boolean).join(" "));
    this.#element.replaceChildren(text, ...(button ? [button] : []));
    this.#element.dataset.notice = name;
    this.#element.hidden = false;
  }

  /** Take these notices away, or any if none is named. */
  clear(...names) {
    if (names.length > 0 && !names.includes(this.#shown)) return;
    this.#shown = null;
    this.#element.hidden = true;
    this.#element.replaceChildren();
  }
}
