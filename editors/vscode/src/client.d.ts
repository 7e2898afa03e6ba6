/** Scripts for webviews, bundled as text. */
declare module "*.client.js" {
  const text: string;
  export default text;
}
