import type { Count } from "./generated";

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** `12,345`, as the server writes it, whatever the machine's locale. */
export function number(value: number): string {
  return WHOLE.format(value);
}

/** A count with `~` before what is not exact: `12,345`, `~12,345`. */
export function tokens(count: Pick<Count, "tokens" | "method">): string {
  const exact = count.method === "exact" || count.method === "endpoint";
  return (exact ? "" : "~") + number(count.tokens);
}

/** `1 turn`, `2,431 turns`. */
export function counted(value: number, noun: string): string {
  return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** A count with its unit: `1 token`, `~12,345 tokens`. */
export function tokensText(count: Pick<Count, "tokens" | "method">): string {
  return `${tokens(count)} token${count.tokens === 1 ? "" : "s"}`;
}

/** A share in percent as the server writes it: `13 %`, whole and rounded down. */
export const percent = (share: number): string => `${number(Math.floor(share))} %`;

/** How a count was made: `o200k_base, exact`, `claude, estimate ±9.2 %`, the band in two digits. */
export function how(count: Count): string {
  const error = count.errorPercent ? ` ±${count.errorPercent.toFixed(count.errorPercent >= 10 ? 0 : 1)} %` : "";
  return `${count.tokenizer}, ${count.method}${error}`;
}

/** Dollars as the server writes them: `$8.27`, two significant digits below $1, `<$0.001`. */
export function usd(value: number): string {
  if (value >= 0.995 || value === 0) return `$${value.toFixed(2)}`;
  if (value < 0.001) return "<$0.001";
  return `$${value.toFixed(1 - Math.floor(Math.log10(value)))}`;
}

/** Return the message of a thrown value. */
export function reason(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

// C0 except the line feed, DEL, C1, bidirectional and invisible characters, line separators.
const CONTROLS = /[\0-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

/** Escape a name that we did not choose: control characters, links of messages, icons of labels. */
export function plain(text: string): string {
  return text
    .replace(CONTROLS, (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`)
    .replaceAll("](", "] (")
    .replaceAll("$(", "$ (");
}
