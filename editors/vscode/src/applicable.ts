import { commands } from "vscode";

/** The state that commands depend on. The manifest uses these values as context keys in `when` clauses. */
export interface State {
  /** Whether the server is running. */
  running: boolean;
  /** Which context is shown. An `own` context can be changed. An `agent` context belongs to a coding agent. */
  context: "own" | "agent" | "none";
  /** Whether the session tree hides ended sessions. */
  endedHidden: boolean;
}

export const state: State = { running: false, context: "none", endedHidden: false };

/** Change the state and the matching context keys (`tokenSidecar.*`). */
export function setState(change: Partial<State>): void {
  for (const key of Object.keys(change) as (keyof State)[]) {
    if (state[key] !== change[key]) void commands.executeCommand("setContext", `tokenSidecar.${key}`, change[key]);
  }
  Object.assign(state, change);
}
