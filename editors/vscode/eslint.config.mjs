import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: ["src/generated.ts", "src/*.client.js", "dist/", "node_modules/", "server/", "*.mjs"] },
  ...tseslint.configs.strictTypeChecked,
  ...tseslint.configs.stylisticTypeChecked,
  {
    languageOptions: { parserOptions: { project: "./tsconfig.json" } },
    rules: {
      "@typescript-eslint/explicit-function-return-type": "error",
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true }],
      "max-lines-per-function": ["error", { max: 60 }],
      "max-lines": ["error", { max: 400 }],
      complexity: ["error", 12],
    },
  },
);
