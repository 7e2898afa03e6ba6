import { commands } from "vscode";

/** What commands depend on; the `when` clauses of the manifest use these as context keys. */
export interface State {
  /** Whether the server runs. */
  running: boolean;
  /** The shown context: `own` can be changed, `agent` belongs to a coding agent. */
  context: "own" | "agent" | "none";
  /** Whether the tree of sessions hides those that have ended. */
  endedHidden: boolean;
}

export const state: State = { running: false, context: "none", endedHidden: false };

/** Change the state, and the context keys `tokenSidecar.*`. */
export function setState(change: Partial<State>): void {
  for (const key of Object.keys(change) as (keyof State)[]) {
    if (state[key] !== change[key]) void commands.executeCommand("setContext", `tokenSidecar.${key}`, change[key]);
  }
  Object.assign(state, change);
}
