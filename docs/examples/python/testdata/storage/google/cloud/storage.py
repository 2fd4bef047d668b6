"""A stand-in for Google's client: a bucket is a folder, and the generation of an object is its number of writes."""

import pathlib

from google.api_core.exceptions import PreconditionFailed


class Client:
    def bucket(self, name):
        return Bucket(name)


class Bucket:
    def __init__(self, name):
        self.name = name

    def blob(self, name, generation=None):
        return Blob(pathlib.Path(self.name), name, generation)


class Blob:
    def __init__(self, folder, name, generation):
        self.folder, self.name, self.generation = folder / name, name, generation

    def writes(self):
        return len(list(self.folder.glob("*")))

    def upload_from_string(self, data, content_type, if_generation_match=None):
        if if_generation_match is not None and if_generation_match != self.writes():
            raise PreconditionFailed
        self.folder.mkdir(parents=True, exist_ok=True)
        self.generation = self.writes() + 1
        (self.folder / str(self.generation)).write_bytes(data if isinstance(data, bytes) else data.encode())

    def download_as_bytes(self):
        return (self.folder / str(self.generation or self.writes())).read_bytes()

    def reload(self):
        self.generation = self.writes()
