// Runs a browser for the tests. It reads {code, args} lines, runs each with `page`, and writes {result}
// lines.
const readline = require("node:readline");
const { chromium } = require("playwright-core");

const AsyncFunction = (async () => {}).constructor;

async function main() {
  const browser = await chromium.launch({
    executablePath: process.argv[2],
    args: [
      "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run",
      "--disable-background-networking", "--disable-component-update", "--disable-sync",
    ],
  });
  const page = await browser.newPage({ viewport: { width: 1100, height: 650 }, colorScheme: "dark" });
  page.setDefaultTimeout(30000);
  console.log(JSON.stringify({ result: "ready" }));
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { code, args } = JSON.parse(line);
    let reply;
    try {
      reply = { result: (await new AsyncFunction("page", "args", "require", code)(page, args, require)) ?? null };
    } catch (error) {
      reply = { error: String(error?.stack ?? error) };
    }
    console.log(JSON.stringify(reply));
  }
  await browser.close();
}

void main();
