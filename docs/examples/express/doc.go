// Package express tests an application in Express that docs/from-express.md puts under a guard.
package express
