// The document lock under the origin of Vite's development server.
const doclock = { target: 'http://127.0.0.1:8090', ws: true, changeOrigin: false };

export default {
  server: {
    proxy: { '^/api/documents/[^/]+/lock': doclock, '/app/': doclock, '/broadcasting/auth': doclock, '/locks.js': doclock },
  },
};
