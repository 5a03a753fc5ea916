import { defineConfig } from "vite";

// The server serves flat names under /console/, and its content security policy forbids inline code, so every asset is a separate file with
// a digest in its name.
export default defineConfig({
  base: "/console/",
  build: {
    outDir: "../src/penstock/console",
    emptyOutDir: true,
    assetsDir: "",
    assetsInlineLimit: 0,
    sourcemap: false,
    target: "es2022",
    modulePreload: { polyfill: false },
  },
});
