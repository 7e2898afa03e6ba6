import { randomBytes } from "node:crypto";
import { type Disposable, Uri, type Webview, commands, window, workspace } from "vscode";
import { plain, reason } from "./format";
import type { Page } from "./generated";
import SCRIPT from "./page.client.js";

const LATEST_MS = 1000;
const PATIENCE_MS = 150;

/** A webview panel or a webview view. */
export interface Host {
  readonly webview: Webview;
  readonly visible: boolean;
}

/** A page's form values. */
export type Choice = Record<string, string>;

interface Message {
  ready?: boolean;
  choice?: Choice;
  command?: string;
  save?: string;
  text?: string;
}

/** Shows a page from the server in a webview, and updates it while it is visible. */
export class LivePage implements Disposable {
  private timer: NodeJS.Timeout | undefined;
  private early: NodeJS.Timeout | undefined;
  private requested = 0;
  private shown = 0;
  private readonly messages: Disposable;

  /** `load` requests the page for the given form values. */
  constructor(
    private readonly host: Host,
    private readonly load: (choice: Choice) => Promise<Page>,
    private choice: Choice = {},
  ) {
    host.webview.options = { enableScripts: true, localResourceRoots: [] };
    host.webview.html = frame();
    this.messages = host.webview.onDidReceiveMessage((message: Message) => void this.handle(message));
  }

  dispose(): void {
    clearTimeout(this.timer);
    clearTimeout(this.early);
    this.shown = Infinity;
    this.messages.dispose();
  }

  /** Schedule a page update. A hidden page loads when it becomes visible. */
  readonly changed = (): void => {
    if (this.host.visible) this.timer ??= setTimeout(() => void this.show(), LATEST_MS);
  };

  /** Show the page for the given form values, or for the previous values. */
  async show(choice = this.choice): Promise<void> {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.choice = choice;
    if (!this.host.visible) return;
    const mine = ++this.requested;
    clearTimeout(this.early);
    this.early = setTimeout(() => void this.host.webview.postMessage({ progress: "Reading …" }), PATIENCE_MS);
    const page = await this.load(choice).catch((error: unknown) => ({ note: `Could not read the latest numbers: ${plain(reason(error))}.` }));
    // A late answer must not replace a newer page, revert the form, or reach a closed panel.
    if (mine < this.shown || choice !== this.choice) return;
    this.shown = mine;
    clearTimeout(this.early);
    await this.host.webview.postMessage(page);
  }

  private async handle({ ready, choice, command, save, text }: Message): Promise<void> {
    if (ready ?? choice) await this.show(choice);
    else if (command) await commands.executeCommand(command);
    else if (save && text !== undefined) await saveAs(save, text);
  }
}

async function saveAs(name: string, text: string): Promise<void> {
  const folder = workspace.workspaceFolders?.[0]?.uri;
  const target = await window.showSaveDialog({ ...(folder && { defaultUri: Uri.joinPath(folder, name) }), filters: { CSV: ["csv"] } });
  if (target) await workspace.fs.writeFile(target, Buffer.from(text));
}

function frame(): string {
  const nonce = randomBytes(16).toString("base64");
  return `<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'nonce-${nonce}'; script-src 'nonce-${nonce}'">
<title>Token Sidecar</title><style id="style" nonce="${nonce}"></style></head><body><p id="status" class="note" role="status" hidden></p><main></main>
<script nonce="${nonce}">${SCRIPT}</script></body></html>`;
}
