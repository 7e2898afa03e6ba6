import { type QuickPickItem, ThemeIcon, window } from "vscode";
import { counted, plain } from "./format";
import type { ContextUsage, FitResult, SessionRow } from "./generated";
import type { Server } from "./server";
import { agentOf, icon } from "./sessionsView";
import { workspaceParam } from "./workspaceParam";

/** The number of sessions that are listed initially. */
const FIRST = 100;

/**
 * Let the user choose the session that the status shows. Returns its id, null if the status will show the newest
 * session, or undefined if nothing was chosen.
 */
export async function chooseSession(server: Server, limit: number | null = FIRST): Promise<string | null | undefined> {
  const where = workspaceParam(server);
  const rows = await server.request<SessionRow[]>("context/sessions", { ...where, all: true, limit });
  if (rows.length === 0) {
    void window.showInformationMessage("No sessions yet. They appear when a coding agent works in this folder or an AI extension reports a conversation.");
    return undefined;
  }
  const automatic: QuickPickItem & { id: string | null } = { label: "Automatic: newest session", id: null };
  const others = rows.at(-1)?.others ?? 0;
  const more = others ? [{ label: `Show ${counted(others, "more session")}`, id: null }] : [];
  const chosen = await window.showQuickPick([automatic, ...rows.map(item), ...more], { title: "Show the session" });
  if (!chosen) return undefined;
  if (chosen === more[0]) return chooseSession(server, null);
  await server.request("context/select", { ...where, session: chosen.id });
  return chosen.id;
}

function item(row: SessionRow): QuickPickItem & { id: string } {
  const about = [agentOf(row), row.shown ? "shown" : ""].filter(Boolean).join(" · ");
  return {
    id: row.id,
    label: plain(row.label),
    description: plain(about),
    detail: plain(row.detail),
    iconPath: new ThemeIcon(icon(row)),
  };
}

/** Show a session in the status until it ends. If no row is given, show the newest session. */
export async function pinSession(server: Server, row?: SessionRow): Promise<void> {
  await server.request("context/select", { ...workspaceParam(server), session: row?.id ?? null });
}

/** Show which turns pruning would remove, and how many cached tokens would be lost. Prune if the user agrees. */
export async function fitContext(server: Server): Promise<FitResult> {
  const where = workspaceParam(server);
  const plan = await server.request<FitResult>("context/fit", where);
  if (plan.removed.length === 0) {
    void window.showInformationMessage(plan.text);
    return plan;
  }
  const apply = "Fit Context";
  const detail = plan.text.split("\n").slice(0, 30).join("\n");
  const answer = await window.showInformationMessage(`Remove ${counted(plan.removed.length, "turn")}?`, { modal: true, detail }, apply);
  if (answer !== apply) return plan;
  return server.request<FitResult>("context/fit", { ...where, planId: plan.planId, apply: true });
}

export async function undoFitContext(server: Server): Promise<ContextUsage> {
  const usage = await server.request<ContextUsage>("context/undo", workspaceParam(server));
  void window.showInformationMessage(usage.text);
  return usage;
}
