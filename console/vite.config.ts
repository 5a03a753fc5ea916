import { defineConfig } from "vite";

// The server answers flat names under /console/ and lets the page load nothing else, so everything is a file of its own with its digest in
// its name, and nothing is written into the page.
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
