import { window, workspace } from "vscode";

/** The root that a question is about: the active document's, else the first; none without folders. */
export function workspaceParam(): { workspace?: string } {
  const document = window.activeTextEditor?.document;
  const folder = (document && workspace.getWorkspaceFolder(document.uri)) ?? workspace.workspaceFolders?.[0];
  return folder ? { workspace: folder.uri.toString() } : {};
}
