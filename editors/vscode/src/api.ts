import type { Disposable } from "vscode";
import type { StatusUpdate } from "./generated";

/**
 * The API for other extensions, as returned by
 * `vscode.extensions.getExtension<Api>("token-sidecar.token-sidecar")?.activate()`. Members are never removed.
 */
export interface Api {
  /**
   * Send a request from docs/reference/protocol.md; for example, `context/append` to report a conversation. If the
   * request fails, the promise is rejected with an error whose message can be shown to users.
   */
  request<R = unknown>(method: string, params: object): Promise<R>;
  /** Listen to each `status/update`. For documents that are not in any folder, `workspace` and `context` are null. */
  onDidChangeStatus(listener: (status: StatusUpdate) => unknown): Disposable;
}
