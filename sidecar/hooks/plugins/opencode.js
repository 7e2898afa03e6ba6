// Written by `token-sidecar hooks --install opencode`. Asks the caps before each prompt.
import { spawnSync } from "node:child_process"

const [program, ...args] = ["COMMAND"]
const ask = (session, cwd, ...more) => {
  const input = JSON.stringify({ session_id: session, cwd })
  const { stdout } = spawnSync(program, [...args, ...more], { input, timeout: 5000, encoding: "utf8" })
  try { return JSON.parse(stdout) } catch { return {} }
}

export const TokenSidecar = async ({ client, directory }) => {
  const refused = new Map()
  return {
    "chat.message": async ({ sessionID }) => {
      const { reason, systemMessage } = ask(sessionID, directory)
      refused.set(sessionID, reason)
      if (systemMessage) await client.tui.showToast({ body: { message: systemMessage, variant: "warning" } }).catch(() => {})
    },
    // An error that is thrown here is shown with its message, and nothing is sent.
    "chat.params": async ({ sessionID }) => {
      if (refused.get(sessionID)) throw new Error(refused.get(sessionID))
    },
    event: async ({ event }) => {
      if (event.type === "session.idle") ask(event.properties.sessionID, directory, "--after-turn")
    },
  }
}
