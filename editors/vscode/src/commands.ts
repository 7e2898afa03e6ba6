import {
  type CodeAction,
  type ExtensionContext,
  type QuickPickItem,
  QuickPickItemKind,
  Range,
  type TextEditor,
  WorkspaceEdit,
  commands,
  window,
  workspace,
} from "vscode";
import { showCostReport } from "./costReport";
import { counted, how, number, percent, plain, reason, tokens, tokensText } from "./format";
import { state } from "./applicable";
import { showFootprint } from "./footprint";
import { installServer } from "./managed";
import type { Capability, ContextUsage, Count, CountResult, FitTextResult, ModelInfo, SessionRow } from "./generated";
import type { Choice } from "./page";
import type { Server } from "./server";
import { countSelections } from "./status";
import type { SessionsView } from "./sessionsView";
import { chooseSession, fitContext, pinSession, undoFitContext } from "./conversation";
import { showTokenMap } from "./tokenMap";
import { workspaceParam } from "./workspaceParam";

const COMPARED = "comparedModels";
const FIT_TITLE = "Fit to budget";

type Action = (...args: unknown[]) => Promise<unknown>;

/** Return the handlers of the palette commands, keyed by the last part of the command id. */
export function actions(context: ExtensionContext, server: Server, view: SessionsView): Record<string, Action> {
  return {
    count: () => count(server),
    compareModels: () => compareModels(server, context),
    contextUsage: () => contextUsage(server),
    costReport: (choice) => showCostReport(server, choice as Choice | undefined),
    footprint: () => showFootprint(server),
    tokenMap: () => showTokenMap(context, server),
    fitToBudget: () => fitToBudget(server),
    selectModel: (model) => selectModel(server, typeof model === "string" ? model : undefined),
    resetContext: () => resetContext(server),
    sessions: () => chooseSession(server),
    pinSession: (row) => pinSession(server, row as SessionRow),
    unpinSession: () => pinSession(server),
    sessionReport: () => showCostReport(server, { period: "all", by: "session" }),
    sortSessions: () => view.sort(),
    hideEndedSessions: () => view.hideEnded(true),
    showEndedSessions: () => view.hideEnded(false),
    fitContext: () => fitContext(server),
    undoFitContext: () => undoFitContext(server),
    probeEndpoints: () => probeEndpoints(server),
    restart: () => server.restart(),
    showLog: (): Promise<void> => {
      server.log.show();
      return Promise.resolve();
    },
    installServer: () => installServer(context, server.log).then(() => server.restart()),
    showMenu,
  };
}

/** Register the commands. Errors that they throw are shown to the user. */
export function registerCommands(context: ExtensionContext, server: Server, view: SessionsView): void {
  for (const [name, action] of Object.entries(actions(context, server, view))) {
    const run = (...args: unknown[]): Promise<unknown> =>
      action(...args).catch((error: unknown) => {
        void window.showErrorMessage(`Token Sidecar: ${plain(reason(error))}`);
      });
    context.subscriptions.push(commands.registerCommand(`tokenSidecar.${name}`, run));
  }
}

function activeEditor(): TextEditor {
  if (!window.activeTextEditor) throw new Error("open a text document first");
  return window.activeTextEditor;
}

async function count(server: Server): Promise<{ document: CountResult; selection: CountResult | null }> {
  const editor = activeEditor();
  const textDocument = { uri: server.uri(editor.document.uri) };
  const document = await server.request<CountResult>("tokens/count", { textDocument });
  const selection = (await countSelections(server, editor)) ?? null;
  const selected = selection ? `, selection ${tokens(selection)}` : "";
  const made = plain(`${document.model}: ${how(document)}`);
  void window.showInformationMessage(`${tokensText(document)}${selected} (${made})`);
  return { document, selection };
}

async function models(server: Server): Promise<(QuickPickItem & { id: string })[]> {
  const known = await server.request<ModelInfo[]>("models/list", { ...workspaceParam(server), choices: true });
  return known.map((model) => ({
    id: model.id,
    label: plain(model.id),
    description: [model.provider, model.contextWindow && `${number(model.contextWindow)} tokens`].filter(Boolean).join(", "),
    detail: plain(`${model.tokenizer}, ${model.method}`),
  }));
}

async function compareModels(server: Server, context: ExtensionContext): Promise<Count[] | undefined> {
  const textDocument = { uri: server.uri(activeEditor().document.uri) };
  const before = context.globalState.get<string[]>(COMPARED, []);
  const items = (await models(server)).map((item) => ({ ...item, picked: before.includes(item.id) }));
  const picked = await window.showQuickPick(items, {
    canPickMany: true,
    matchOnDescription: true,
    title: "Compare models: count this document for",
  });
  if (!picked?.length) return undefined;
  const ids = picked.map((item) => item.id);
  await context.globalState.update(COMPARED, ids);
  const result = await server.request<CountResult>("tokens/count", { textDocument, models: ids });
  const counts = (result.models ?? []).sort((a, b) => a.tokens - b.tokens);
  await window.showQuickPick(counts.map(comparison), { title: "Tokens by Model" });
  return counts;
}

function comparison(each: Count): QuickPickItem {
  const share = each.percent === null ? "" : `, ${percent(each.percent, each.method)} of the window`;
  const cost = each.inputCostText === null ? "" : `, ${each.inputCostText} input cost`;
  return { label: tokensText(each), description: plain(each.model), detail: plain(how(each)) + share + cost };
}

async function contextUsage(server: Server): Promise<ContextUsage> {
  const usage = await server.request<ContextUsage>("context/usage", workspaceParam(server));
  await commands.executeCommand("tokenSidecar.context.focus");
  return usage;
}

/** Apply one of the server's fixes. If there are none, ask the user for a size. */
async function fitToBudget(server: Server): Promise<boolean> {
  const { document } = activeEditor();
  const version = document.version;
  const whole = new Range(0, 0, document.lineCount, 0);
  const found = await commands.executeCommand<CodeAction[] | undefined>(
    "vscode.executeCodeActionProvider", document.uri, whole, "quickfix", 20,
  );
  const fixes = (found ?? []).filter((each) => each.title.startsWith(FIT_TITLE));
  if (fixes.length === 0) return fitToSize(server);
  const choices = fixes.map((fix) => ({ label: fix.title, fix }));
  const chosen = choices.length === 1 ? choices[0] : await window.showQuickPick(choices, { title: FIT_TITLE });
  if (!chosen) return false;
  if (document.version !== version) throw new Error("the document changed in the meantime: try again");
  const { edit, command } = chosen.fix;
  if (edit && !(await workspace.applyEdit(edit))) throw new Error("the edit could not be applied");
  if (command) await commands.executeCommand(command.command, ...((command.arguments ?? []) as unknown[]));
  return true;
}

async function fitToSize(server: Server): Promise<boolean> {
  const { document } = activeEditor();
  const version = document.version;
  const answer = await window.showInputBox({
    title: "Fit to budget: maximum number of tokens",
    prompt: "This document is within its budgets. Text is removed from the middle; undo restores it.",
    validateInput: (text) => (/^\d+$/.test(text.trim()) ? undefined : "a whole number of tokens"),
  });
  if (answer === undefined) return false;
  const params = { textDocument: { uri: server.uri(document.uri) }, maxTokens: Number(answer) };
  const fitted = await server.request<FitTextResult>("tokens/fit", params);
  if (!fitted.changed) {
    void window.showInformationMessage(`Already fits: ${counted(fitted.tokens, "token")}.`);
    return false;
  }
  if (document.version !== version) throw new Error("the document changed in the meantime: try again");
  const edit = new WorkspaceEdit();
  edit.replace(document.uri, new Range(0, 0, document.lineCount, 0), fitted.text);
  return workspace.applyEdit(edit);
}

async function selectModel(server: Server, named?: string): Promise<string | undefined> {
  if (named) {
    await server.useModel(named, workspaceParam(server));
    return named;
  }
  const automatic = { label: "Automatic", detail: "The configured model, or else the shown session's", id: null };
  const items: (QuickPickItem & { id: string | null })[] = [automatic, ...(await models(server))];
  const picked = await window.showQuickPick(items, { title: "Count for the model" });
  if (picked) await server.useModel(picked.id, workspaceParam(server));
  return picked?.id ?? undefined;
}

async function resetContext(server: Server): Promise<ContextUsage> {
  const usage = await server.request<ContextUsage>("context/reset", workspaceParam(server));
  void window.showInformationMessage(usage.text);
  return usage;
}

async function probeEndpoints(server: Server): Promise<Capability[]> {
  const found = await server.request<Capability[]>("capabilities/probe", workspaceParam(server));
  if (found.length === 0) {
    void window.showInformationMessage("No endpoint is configured. Add one to tokenSidecar.endpoint in your user settings.");
    return found;
  }
  const items = found.map((each) => ({
    label: plain(each.endpoint),
    description: plain([each.server, each.model, able(each)].filter(Boolean).join(", ")),
    detail: plain(each.reason ?? "counts texts and chats"),
  }));
  void window.showQuickPick(items, { title: "Endpoints" });
  return found;
}

function able(each: Capability): string {
  return `text ${each.text}, chat ${each.chat}, window ${each.limit === null ? "unknown" : number(each.limit)}`;
}

const hasDocument = (): boolean => window.activeTextEditor !== undefined;
const isOwn = (): boolean => state.context === "own";
const always = (): boolean => true;

const MENU: readonly (readonly [icon: string, label: string, command: string, applies?: () => boolean] | undefined)[] = [
  ["symbol-numeric", "Count document and selection", "count", hasDocument],
  ["list-ordered", "Compare models", "compareModels", hasDocument],
  ["fold", "Fit to budget", "fitToBudget", hasDocument],
  undefined,
  ["pie-chart", "Context", "contextUsage"],
  ["list-selection", "Sessions", "sessions"],
  ["credit-card", "Cost report", "costReport"],
  ["inbox", "What your agent loads", "footprint"],
  ["layers", "Token map", "tokenMap"],
  ["symbol-parameter", "Select model", "selectModel"],
  ["filter", "Fit context", "fitContext", isOwn],
  ["discard", "Undo fit context", "undoFitContext", isOwn],
  ["clear-all", "Reset context", "resetContext", isOwn],
  undefined,
  ["plug", "Probe endpoints", "probeEndpoints"],
  ["debug-restart", "Restart server", "restart"],
  ["output", "Show log", "showLog"],
];

async function showMenu(): Promise<void> {
  const items = MENU.filter((entry) => (entry?.[3] ?? always)()).map((entry) =>
    entry
      ? { label: `$(${entry[0]}) ${entry[1]}`, command: entry[2] }
      : { label: "", command: "", kind: QuickPickItemKind.Separator },
  );
  const chosen = await window.showQuickPick(items, { title: "Token Sidecar" });
  if (chosen) await commands.executeCommand(`tokenSidecar.${chosen.command}`);
}
