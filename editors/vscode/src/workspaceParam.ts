import { languages, window, workspace } from "vscode";
import { DOCUMENTS, type Server } from "./server";

/**
 * Return the active document's folder, or the document itself if it is outside all folders. If no document is active,
 * return the first folder.
 */
export function workspaceParam(server: Server): { workspace?: string } {
  const document = window.activeTextEditor?.document;
  const own = document && workspace.getWorkspaceFolder(document.uri);
  if (document && !own && languages.match(DOCUMENTS, document)) return { workspace: server.uri(document.uri) };
  const folder = own ?? workspace.workspaceFolders?.[0];
  return folder ? { workspace: folder.uri.toString() } : {};
}
