"""A stand-in for Google's client, which is in no Debian archive. Its documents are in memory."""

DOCUMENTS: dict[str, dict] = {}


class Client:
    def collection(self, path):
        return Collection(path)


class Collection:
    def __init__(self, path):
        self.path = path

    def document(self, id):
        return Document(f"{self.path}/{id}")


class Document:
    def __init__(self, path):
        self.path = path

    def get(self):
        return self

    def to_dict(self):
        return DOCUMENTS.get(self.path) and dict(DOCUMENTS[self.path])

    def update(self, fields):
        DOCUMENTS[self.path].update(fields)
