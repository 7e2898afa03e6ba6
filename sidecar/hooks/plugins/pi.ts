// Written by `token-sidecar hooks --install pi`. Asks the caps before each prompt.
import { spawnSync } from "node:child_process";

const [program, ...args] = ["COMMAND"];
const ask = (ctx: any, ...more: string[]) => {
  const session = { session_id: ctx.sessionManager.getSessionId(), transcript_path: ctx.sessionManager.getSessionFile(), cwd: ctx.cwd };
  const { stdout } = spawnSync(program, [...args, ...more], { input: JSON.stringify(session), timeout: 5000, encoding: "utf8" });
  try { return JSON.parse(stdout); } catch { return {}; }
};

export default function (pi: any) {
  pi.on("input", async (_event: any, ctx: any) => {
    const { reason, systemMessage } = ask(ctx);
    if (reason || systemMessage) ctx.hasUI ? ctx.ui.notify(reason ?? systemMessage, reason ? "error" : "warning") : console.error(reason ?? systemMessage);
    return { action: reason ? "handled" : "continue" };
  });
  pi.on("agent_end", async (_event: any, ctx: any) => { ask(ctx, "--after-turn"); });
}
