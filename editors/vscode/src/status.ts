import {
  CancellationTokenSource,
  type Command,
  Disposable,
  LanguageStatusSeverity,
  MarkdownString,
  StatusBarAlignment,
  type TextEditor,
  ThemeColor,
  commands,
  languages,
  window,
  workspace,
} from "vscode";
import { setState } from "./applicable";
import { plain, tokens } from "./format";
import type { CountResult, StatusUpdate } from "./generated";
import { DOCUMENTS, type Server } from "./server";
import { COLD_NOTIFICATIONS, SECTION } from "./settings";

const SELECTION_DELAY_MS = 75;
// Drawing the status bar takes longer than counting, so it is limited to five times a second.
const PAINT_MS = 200;
const NO_DOCUMENT = "";
const BACKGROUND: Record<StatusUpdate["severity"], string | undefined> = {
  ok: undefined,
  warning: "statusBarItem.warningBackground",
  error: "statusBarItem.errorBackground",
};

/**
 * The status bar item. It shows the active document's latest status and the selection's token count. While another tab
 * is active, such as an agent's chat, it shows the context and the cost only.
 */
export class StatusBar implements Disposable {
  private readonly item = window.createStatusBarItem("status", StatusBarAlignment.Right, 101);
  private readonly updates = new Map<string, StatusUpdate>();
  private readonly disposables: { dispose(): unknown }[];
  private timer: NodeJS.Timeout | undefined;
  private running: CancellationTokenSource | undefined;
  private selection = "";
  private lastUri = NO_DOCUMENT;
  private painted: NodeJS.Timeout | undefined;
  private stale = false;

  constructor(private readonly server: Server) {
    this.item.name = "Token Sidecar";
    this.item.command = "tokenSidecar.showMenu";
    this.disposables = [
      this.item,
      server.onStatus((update) => {
        const uri = update.uri ?? NO_DOCUMENT;
        this.updates.delete(uri); // keeps the latest update last in the map
        this.updates.set(uri, update);
        if (update.uri !== null) this.updates.delete(NO_DOCUMENT);
        if (this.selection) this.selectionChanged(); // the model or the server may have changed
        this.updated();
      }),
      server.onHealth(({ state }) => {
        setState({ running: state === "running" });
        if (state !== "running") this.updates.clear();
        this.render();
      }),
      window.onDidChangeActiveTextEditor(() => {
        this.selection = "";
        this.render();
        this.selectionChanged();
      }),
      window.onDidChangeTextEditorSelection(({ textEditor }) => {
        if (textEditor === window.activeTextEditor) this.selectionChanged();
      }),
      workspace.onDidCloseTextDocument(({ uri }) => {
        this.updates.delete(server.uri(uri));
      }),
    ];
  }

  dispose(): void {
    clearTimeout(this.timer);
    clearTimeout(this.painted);
    this.running?.cancel();
    for (const each of this.disposables) each.dispose();
  }

  /** Draw immediately, but at most once every PAINT_MS. The latest state is always drawn. */
  private updated(): void {
    this.stale = this.painted !== undefined;
    if (this.stale) return;
    this.render();
    this.painted = setTimeout(() => {
      this.painted = undefined;
      if (this.stale) this.updated();
    }, PAINT_MS);
  }

  private render(): void {
    const update = this.latest();
    setState({ context: update?.context ? (update.context.source === "protocol" ? "own" : "agent") : "none" });
    if (!update?.text || !line(update, "")) {
      this.item.hide();
      return;
    }
    const background = BACKGROUND[update.severity];
    this.item.text = line(update, this.selection);
    this.item.tooltip = tooltip(update);
    // Without this, screen readers would also read the tooltip's Markdown and the names of icons.
    this.item.accessibilityInformation = { label: line(update, this.selection, false) };
    this.item.backgroundColor = background ? new ThemeColor(background) : undefined;
    this.item.show();
  }

  private latest(): StatusUpdate | undefined {
    const editor = window.activeTextEditor;
    if (editor) {
      const uri = this.server.uri(editor.document.uri);
      if (this.updates.has(uri)) this.lastUri = uri;
      return this.updates.get(uri);
    }
    const last = this.updates.get(this.lastUri) ?? [...this.updates.values()].at(-1);
    return this.updates.get(NO_DOCUMENT) ?? (last && withoutDocument(last));
  }

  private selectionChanged(): void {
    clearTimeout(this.timer);
    this.running?.cancel();
    const editor = window.activeTextEditor;
    if (editor?.selections.some((each) => !each.isEmpty)) {
      this.timer = setTimeout(() => void this.countSelection(editor), SELECTION_DELAY_MS);
    } else {
      this.showSelection("");
    }
  }

  // Most keys move the cursor, so the item is drawn only if the text has changed.
  private showSelection(text: string): void {
    if (text === this.selection) return;
    this.selection = text;
    this.render();
  }

  private async countSelection(editor: TextEditor): Promise<void> {
    const source = (this.running = new CancellationTokenSource());
    const result = await countSelections(this.server, editor, source).catch(() => undefined);
    if (source.token.isCancellationRequested) return;
    this.showSelection(result ? `, ${tokens(result)} selected` : "");
  }
}

/** Return the total count of all selections, or undefined if nothing is selected. */
export async function countSelections(
  server: Server,
  editor: TextEditor,
  source = new CancellationTokenSource(),
): Promise<CountResult | undefined> {
  const ranges = editor.selections.filter((each) => !each.isEmpty).map(({ start, end }) => ({ start, end }));
  if (ranges.length === 0) return undefined;
  const textDocument = { uri: server.uri(editor.document.uri) };
  const result = await server.request<CountResult>("tokens/count", { textDocument, ranges }, source.token);
  const counts = result.ranges ?? [];
  const unsure = counts.find((each) => each.method !== "exact" && each.method !== "endpoint");
  const sum = counts.reduce((total, each) => total + each.tokens, 0);
  return { ...result, ...(unsure ?? counts[0]), tokens: sum };
}

/**
 * Return the status line. The selection's count comes after the document's. An icon marks each part that is near or
 * over its limit.
 */
function line(update: StatusUpdate, selection: string, icons = true): string {
  const { document, context, cost, cache } = update;
  const text = (part: { text: string; severity: StatusUpdate["severity"] } | null): string =>
    part ? (icons && part.severity !== "ok" ? `$(${part.severity}) ` : "") + part.text : "";
  const counted = document || update.uri === null ? text(document) : "?";
  return [counted && counted + selection, text(context), text(cost), text(cache)].filter(Boolean).join(" · ");
}

function withoutDocument(update: StatusUpdate): StatusUpdate {
  const severities = [update.context, update.cost, update.cache].map((part) => part?.severity);
  const severity = (["error", "warning"] as const).find((each) => severities.includes(each)) ?? "ok";
  return { ...update, uri: null, version: null, document: null, severity };
}

function tooltip(update: StatusUpdate): MarkdownString {
  const parts = [update.document, update.context, update.cost].map((part) => part?.tooltip).filter(Boolean);
  const markdown = new MarkdownString(parts.join("\n\n---\n\n")); // the server has escaped all names in the text
  markdown.isTrusted = markdown.supportHtml = false;
  return markdown;
}

/** Create the language status item, which shows the server's state and its last warning. */
export function languageStatus(server: Server): Disposable {
  const item = languages.createLanguageStatusItem("token-sidecar.health", DOCUMENTS);
  const restart: Command = { title: "Restart", command: "tokenSidecar.restart" };
  item.name = item.text = "Token Sidecar";
  const subscription = server.onHealth(({ state, detail }) => {
    item.busy = state === "starting";
    item.severity = state === "stopped" ? LanguageStatusSeverity.Error : LanguageStatusSeverity.Information;
    item.text = `Token Sidecar: ${state}`;
    item.detail = detail;
    item.command = state === "running" ? { title: "Show Log", command: "tokenSidecar.showLog" } : restart;
  });
  const warnings = server.onWarning(({ kind, message }) => {
    if (kind === "cold" && workspace.getConfiguration(SECTION).get<boolean>(COLD_NOTIFICATIONS)) notify(message);
    item.severity = LanguageStatusSeverity.Warning;
    item.detail = plain(message);
    item.command = { title: "Context", command: "tokenSidecar.contextUsage" };
  });
  return Disposable.from(item, subscription, warnings);
}

function notify(message: string): void {
  void window.showWarningMessage(`Token Sidecar: ${plain(message)}`, "Context").then((choice) => {
    if (choice) void commands.executeCommand("tokenSidecar.contextUsage");
  });
}
