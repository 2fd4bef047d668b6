// The document lock under the origin of Vite's development server. KEY is PUSHER_APP_KEY.
const doclock = { target: 'http://127.0.0.1:8090', ws: true, changeOrigin: false };

export default {
  server: {
    proxy: { '^/(api/documents/[^/]+/lock|app/KEY|broadcasting/auth|locks\\.js)([/?]|$)': doclock },
  },
};
