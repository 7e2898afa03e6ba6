import { type QuickPickItem, window } from "vscode";
import type { Row } from "./contextView";
import { counted, plain } from "./format";
import type { ContextUsage, FitResult, SessionRow } from "./generated";
import type { Server } from "./server";
import { workspaceParam } from "./workspaceParam";

/** Choose the session that the status shows, or the newest again; what was chosen. */
export async function chooseSession(server: Server): Promise<string | null | undefined> {
  const where = workspaceParam(server);
  const rows = await server.request<SessionRow[]>("context/sessions", { ...where, all: true });
  if (rows.length === 0) {
    void window.showInformationMessage("No session is known: an AI extension or a coding agent makes one.");
    return undefined;
  }
  const automatic: QuickPickItem & { id: string | null } = { label: "Automatic: the newest", id: null };
  const chosen = await window.showQuickPick([automatic, ...rows.map(item)], { title: "Show the session" });
  if (!chosen) return undefined;
  await server.request("context/select", { ...where, session: chosen.id });
  return chosen.id;
}

function item(row: SessionRow): QuickPickItem & { id: string } {
  return { id: row.id, label: plain(row.label), detail: plain(row.detail), picked: row.shown };
}

/** Let the status show this session until it ends; none: the newest again. */
export async function pinSession(server: Server, row?: Row): Promise<void> {
  await server.request("context/select", { ...workspaceParam(server), session: row?.session?.id ?? null });
}

/** Show what would be taken out and what that costs in cache; apply it when the user says so. */
export async function fitContext(server: Server): Promise<FitResult> {
  const where = workspaceParam(server);
  const plan = await server.request<FitResult>("context/fit", where);
  if (plan.removed.length === 0) {
    void window.showInformationMessage(plan.text);
    return plan;
  }
  const apply = "Fit the Context";
  const detail = plan.text.split("\n").slice(0, 30).join("\n");
  const answer = await window.showInformationMessage(`Take ${counted(plan.removed.length, "turn")} out?`, { modal: true, detail }, apply);
  if (answer !== apply) return plan;
  return server.request<FitResult>("context/fit", { ...where, planId: plan.planId, apply: true });
}

export async function undoFitContext(server: Server): Promise<ContextUsage> {
  const usage = await server.request<ContextUsage>("context/undo", workspaceParam(server));
  void window.showInformationMessage(usage.text);
  return usage;
}
