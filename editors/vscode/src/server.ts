import { homedir } from "node:os";
import {
  type CancellationToken,
  type Disposable,
  EventEmitter,
  type ExtensionContext,
  type LogOutputChannel,
  Uri,
  commands,
  window,
  workspace,
} from "vscode";
import { CloseAction, ErrorAction, LanguageClient, RevealOutputChannelOn } from "vscode-languageclient/node";
import type { CloseHandlerResult, LanguageClientOptions } from "vscode-languageclient/node";
import { plain, reason } from "./format";
import { type ServerCommand, findServer } from "./locate";
import type { ContextWarning, StatusUpdate } from "./generated";
import { SECTION, serverKeys, writtenSettings } from "./settings";

const MOST_RESTARTS = 3;
const RESTART_WINDOW_MS = 3 * 60_000;

const HOW_TO_INSTALL =
  "Let the extension install it, put token-sidecar on PATH, or name it in the setting tokenSidecar.server.path. " +
  "(A remote VS Code takes PATH from your login shell.)";
const CHOICES = {
  "Install": { command: "tokenSidecar.installServer", arguments: [] },
  "Restart": { command: "tokenSidecar.restart", arguments: [] },
  "Show Log": { command: "tokenSidecar.showLog", arguments: [] },
  "Open Settings": { command: "workbench.action.openSettings", arguments: ["tokenSidecar.server.path"] },
} as const;

/** The documents that are counted: files, untitled documents, and documents in virtual workspaces. */
export const DOCUMENTS = ["file", "untitled", "vscode-vfs"].map((scheme) => ({ scheme }));

export interface Health {
  state: "starting" | "running" | "stopped";
  detail: string;
}

/** Logs the errors of the client library instead of showing them, because this extension shows its own messages. */
class QuietClient extends LanguageClient {
  override error(message: string, data?: unknown): void {
    super.error(message, data, false);
  }
}

/** Starts and restarts one server process for all folders in the window, and sends requests to it. */
export class Server implements Disposable {
  private client: LanguageClient | undefined;
  private ends: number[] = [];
  private work = Promise.resolve();
  private readonly healthChanged = new EventEmitter<Health>();
  private readonly statusArrived = new EventEmitter<StatusUpdate>();
  private readonly newsArrived = new EventEmitter<undefined>();
  private readonly warningArrived = new EventEmitter<ContextWarning>();
  private readonly news = new Map<string | null, string>();
  /** The models that the user has chosen, keyed by workspace. They are sent again after a restart. */
  private readonly models = new Map<string, string>();
  /** The models that the workspaces' texts are counted for, keyed by workspace. */
  private readonly countedFor = new Map<string | null, string>();
  readonly onHealth = this.healthChanged.event;
  readonly onStatus = this.statusArrived.event;
  /** Fired after the context, the sessions or the costs of a workspace have changed. */
  readonly onNews = this.newsArrived.event;
  readonly onWarning = this.warningArrived.event;

  constructor(
    private readonly context: ExtensionContext,
    readonly log: LogOutputChannel,
  ) {}

  /** Stop the server if it is running, look for its program again, and start it. Concurrent calls run one after the other. */
  restart(): Promise<void> {
    this.ends = [];
    return this.enqueue();
  }

  /** Send a request, once the server has started if it is starting. Throws an error whose message can be shown to the user. */
  async request<R>(method: string, params: object, token?: CancellationToken): Promise<R> {
    if (!this.client?.isRunning()) await this.work;
    const client = this.client;
    if (!client?.isRunning()) throw new Error("the server is not running: use Token Sidecar: Restart Server");
    return token ? client.sendRequest<R>(method, params, token) : client.sendRequest<R>(method, params);
  }

  /** Set a workspace's model, or undo the choice if it is null. The workspace may be omitted if there is only one. */
  async useModel(model: string | null, { workspace }: { workspace?: string }): Promise<void> {
    await this.request("context/set", { workspace, model });
    this.models.delete(workspace ?? ""); // keeps the latest choice last in the map
    if (model !== null) this.models.set(workspace ?? "", model);
  }

  /** Return the model that a folder's texts are counted for: the user's choice, or what the server has reported. */
  modelOf(folder: Uri): string | undefined {
    return this.models.get(folder.toString()) ?? this.countedFor.get(folder.toString());
  }

  // The server responds by requesting its settings.
  settingsChanged(): void {
    if (this.client?.isRunning()) {
      void this.client.sendNotification("workspace/didChangeConfiguration", { settings: null });
    }
  }

  /** Return a document's URI in the form that the protocol uses. */
  uri(uri: Uri): string {
    return this.client?.code2ProtocolConverter.asUri(uri) ?? uri.toString();
  }

  async dispose(): Promise<void> {
    await this.shut();
    this.healthChanged.dispose();
    this.statusArrived.dispose();
    this.newsArrived.dispose();
    this.warningArrived.dispose();
  }

  private enqueue(): Promise<void> {
    this.work = this.work.then(() => this.shut()).then(() => this.launch());
    return this.work;
  }

  private async shut(): Promise<void> {
    const client = this.client;
    this.client = undefined;
    await client?.dispose().catch((error: unknown) => {
      this.log.warn(`stopping the server: ${reason(error)}`);
    });
  }

  private async launch(): Promise<void> {
    this.healthChanged.fire({ state: "starting", detail: "starting" });
    try {
      const found = await findServer(this.context);
      if (found) await this.run(found);
      else this.failed(`The server was not found. ${HOW_TO_INSTALL}`, "Install", "Open Settings");
    } catch (error) {
      const ended = reason(error).startsWith("Pending response rejected");
      this.failed(`The server did not start: ${ended ? "it exited immediately" : reason(error)}.`, "Restart", "Show Log", "Open Settings");
    }
  }

  private async run(found: ServerCommand): Promise<void> {
    this.log.info(`server (${found.origin}): ${[found.command, ...found.args].join(" ")}`);
    const level = workspace.getConfiguration(SECTION).get<string>("server.logLevel");
    const args = level ? [...found.args, "--log-level", level] : found.args;
    const executable = { command: found.command, args, options: { cwd: homedir() } };
    const client = new QuietClient(SECTION, "Token Sidecar", executable, this.options());
    client.onNotification("status/update", (update: StatusUpdate) => {
      this.statusArrived.fire(update);
      const news = JSON.stringify([update.context, update.cost, update.cache, update.costRevision]);
      if (this.news.get(update.workspace) !== news) this.newsArrived.fire(undefined);
      this.news.set(update.workspace, news);
      this.countedFor.set(update.workspace, update.model);
    });
    client.onNotification("context/warning", (warning: ContextWarning) => {
      this.log.warn(warning.message);
      this.warningArrived.fire(warning);
    });
    this.client = client;
    await client.start();
    for (const [workspace, model] of this.models) {
      const refused = (): void => {
        if (client.isRunning()) this.models.delete(workspace); // the document that identified the workspace was closed
      };
      client.sendRequest("context/set", { ...(workspace && { workspace }), model }).catch(refused);
    }
    const version = client.initializeResult?.serverInfo?.version ?? "";
    this.healthChanged.fire({ state: "running", detail: `${version} (${found.origin})`.trim() });
  }

  private options(): LanguageClientOptions {
    const keys = serverKeys(this.context);
    return {
      documentSelector: DOCUMENTS,
      outputChannel: this.log,
      revealOutputChannelOn: RevealOutputChannelOn.Never,
      initializationFailedHandler: () => false,
      // Errors are marked as handled, so that only this class shows messages.
      errorHandler: {
        error: () => ({ action: ErrorAction.Continue, handled: true }),
        closed: (): CloseHandlerResult => {
          this.ended();
          return { action: CloseAction.DoNotRestart, handled: true };
        },
      },
      middleware: {
        workspace: {
          configuration: (params, token, next) =>
            params.items.every((item) => item.section === SECTION)
              ? params.items.map((item) => writtenSettings(keys, item.scopeUri ? Uri.parse(item.scopeUri) : undefined))
              : next(params, token),
        },
      },
    };
  }

  /** Handle an unexpectedly closed connection. */
  private ended(): void {
    if (!this.client?.initializeResult) return; // the server never ran, and start() reports why
    const now = Date.now();
    this.ends = [...this.ends.filter((time) => now - time < RESTART_WINDOW_MS), now];
    if (this.ends.length > MOST_RESTARTS) {
      this.failed(`The server exited ${this.ends.length} times in three minutes and was not restarted.`, "Restart", "Show Log");
      return;
    }
    const message = `The Token Sidecar server exited unexpectedly and is being restarted (${this.ends.length} of ${MOST_RESTARTS}).`;
    this.log.warn(message);
    void window.showWarningMessage(message, "Show Log").then((choice) => {
      if (choice) this.log.show();
    });
    // Wait until the client has cleaned up the closed connection.
    setTimeout(() => void this.enqueue(), 0);
  }

  /** Show why the server is not running, with buttons for possible fixes. */
  private failed(problem: string, ...choices: (keyof typeof CHOICES)[]): void {
    this.log.error(problem);
    this.healthChanged.fire({ state: "stopped", detail: problem });
    void window.showErrorMessage(`Token Sidecar: ${plain(problem)}`, ...choices).then((choice) => {
      if (choice) void commands.executeCommand(CHOICES[choice].command, ...CHOICES[choice].arguments);
    });
  }
}
