// Runs JavaScript for the tests in the extension host. A POST request contains a function body, and the
// response is its JSON result. The server listens on `probe.sock` in the folder above the workspace.
const http = require("node:http");
const path = require("node:path");
const vscode = require("vscode");

const AsyncFunction = (async () => {}).constructor;

/** Poll until `test` returns a truthy value. The error message contains the last value. */
async function until(test, limit = 60000) {
  const end = Date.now() + limit;
  let last;
  while (Date.now() < end) {
    last = await test();
    if (last) return last;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  throw new Error(`timeout: ${test} returned ${JSON.stringify(last)}`);
}

async function answer(request) {
  let body = "";
  for await (const chunk of request) body += chunk;
  const { code, args } = JSON.parse(body);
  try {
    const run = new AsyncFunction("vscode", "until", "args", code);
    return { result: (await run(vscode, until, args)) ?? null };
  } catch (error) {
    return { error: String(error?.stack ?? error) };
  }
}

exports.activate = () => {
  const { workspaceFile, workspaceFolders } = vscode.workspace;
  const root = workspaceFile ?? workspaceFolders?.[0]?.uri;
  if (!root) return;
  const server = http.createServer(async (request, response) => {
    response.end(JSON.stringify(await answer(request)));
  });
  const socket = path.join(path.dirname(root.fsPath), "probe.sock");
  require("node:fs").rmSync(socket, { force: true });
  server.listen(socket);
};
