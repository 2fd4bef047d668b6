// Package fastapi tests an application in FastAPI that docs/from-fastapi.md puts under a guard.
package fastapi
