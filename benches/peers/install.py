"""Sets up what is missing: programs, virtual environments, checkpoints and their conversions. Each thing
is made under another name and then moved, so that what is there is whole."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
LLAMA_CPP = "llama-cpp-python==0.3.36"


def say(text):
    print(text, file=sys.stderr, flush=True)


def call(*command, **more):
    subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr, **more)


class Place:
    """The directory that everything is below."""

    def __init__(self, directory):
        self.directory = pathlib.Path(directory).resolve()
        self.checkpoints = self.directory / "checkpoints"
        self.directory.mkdir(parents=True, exist_ok=True)

    def make(self, name, what, build):
        """The path of `name`, which `build` makes at the path that it is given."""
        path = self.directory / name
        if not path.exists():
            say(f"== {what}")
            unfinished = path.with_name(path.name + ".unfinished")
            remove(unfinished)
            unfinished.parent.mkdir(parents=True, exist_ok=True)
            build(unfinished)
            unfinished.rename(path)
        return path

    def tools(self):
        """Programs that build and install the rest."""
        venv = self.directory / "tools"
        pins = HERE / "requirements/tools.txt"
        if not same(pins, venv / "installed.txt"):
            say("== build tools")
            remove(venv)
            call(sys.executable, "-m", "venv", venv)
            call(venv / "bin/pip", "install", "--quiet", "--no-deps", "-r", pins)
            shutil.copy(pins, venv / "installed.txt")
        return venv / "bin"

    def python(self, name):
        """The interpreter of a virtual environment with exactly the packages of its list."""
        venv, pins = self.directory / f"venv-{name}", HERE / f"requirements/{name}.txt"
        if not same(pins, venv / "installed.txt"):
            uv = self.tools() / "uv"
            say(f"== packages of {name}")
            remove(venv)
            environment = {**os.environ, "UV_CACHE_DIR": str(self.directory / "uv-cache")}
            environment.setdefault("UV_HTTP_TIMEOUT", "600")
            call(uv, "venv", "--quiet", "--python", sys.executable, venv, env=environment)
            call(uv, "pip", "sync", "--quiet", "--python", venv / "bin/python", pins, env=environment)
            shutil.copy(pins, venv / "installed.txt")
        return venv / "bin/python"

    def checkpoint(self, shape, precast):
        def build(path):
            call(precast["random-checkpoint"], shape, path)

        return self.make(f"checkpoints/{shape}", f"checkpoint {shape}", build)

    def llama_source(self):
        def build(path):
            path.mkdir()
            download = [self.tools() / "pip", "download", "--quiet", "--no-deps"]
            call(*download, "--no-binary", "llama-cpp-python", LLAMA_CPP, "--dest", path)
            (archive,) = path.glob("*.tar.gz")
            shutil.unpack_archive(archive, path, filter="data")
            archive.unlink()

        (package,) = self.make("llama.cpp-source", "source of llama.cpp", build).iterdir()
        return package / "vendor/llama.cpp"

    def llama_build(self):
        """The directory of llama.cpp's programs, built for this machine."""

        def build(path):
            tools = self.tools()
            # Ninja is found by its place.
            environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
            switches = ["GGML_NATIVE=ON", "BUILD_SHARED_LIBS=OFF", "CMAKE_BUILD_TYPE=Release"]
            switches += ["LLAMA_CURL=OFF", "LLAMA_OPENSSL=OFF", "LLAMA_BUILD_SERVER=OFF"]
            switches += ["LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF"]
            cmake = [tools / "cmake", "-G", "Ninja", "-S", self.llama_source(), "-B", path]
            call(*cmake, *[f"-D{s}" for s in switches], env=environment)
            programs = ["llama-bench", "llama-batched-bench", "llama-quantize", "llama-completion"]
            call(tools / "cmake", "--build", path, "--target", *programs, env=environment)

        return self.make("llama.cpp", "llama.cpp", build) / "bin"


def same(a, b):
    return b.exists() and a.read_bytes() == b.read_bytes()


def remove(path):
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()


def precast_programs():
    """Paths of the programs of this repository that take part, by name, built for release."""
    say("== precast")
    command = ["cargo", "build", "--locked", "--release", "-p", "precast-benches"]
    command += ["--bench", "speed", "--bins", "--message-format", "json-render-diagnostics"]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    messages = (json.loads(line) for line in output.splitlines())
    built = (m for m in messages if m["reason"] == "compiler-artifact" and m["executable"])
    return {m["target"]["name"]: m["executable"] for m in built}
