import { defineConfig } from "vite";

// The build is embedded in the program, see ../internal/server/console. Paths are
// relative, so that the console also works below a prefix of a proxy.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../internal/server/console/dist",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    chunkSizeWarningLimit: 700,
  },
});
