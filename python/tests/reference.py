"""Writes the reference of docs/pytorch.md from the stubs and the doc strings: `python reference.py`."""

import ast
import re
import textwrap
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "pytorch.md"
PACKAGE = HERE.parent / "python" / "gradwire"
BEGIN = "## Reference\n"
# The public modules, and where the names of each are defined.
MODULES = {
    "gradwire": [
        "_gradwire.pyi",
        "_schemes.py",
        "_transport.py",
        "_runs.py",
        "_errors.py",
    ],
    "gradwire.contract": ["contract.py"],
    "gradwire.torch": ["torch.py"],
    "gradwire.fsdp": ["fsdp.py"],
}


def parsed(name):
    return ast.parse((PACKAGE / name).read_text(encoding="utf-8"))


def public(module):
    """The names in `__all__`."""
    file = "__init__.py" if module == "gradwire" else f"{module.split('.')[1]}.py"
    for node in parsed(file).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise AssertionError(f"{file} has no __all__")


def definitions():
    """Of each module its public names, in order of file, with what defines them."""
    for module, files in MODULES.items():
        names = set(public(module))
        found = [
            node
            for file in files
            for node in parsed(file).body
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name in names
        ]
        missing = names - {node.name for node in found} - {"ViolationError"}
        assert not missing, f"{module}: {missing} are defined in none of {files}"
        yield module, found


def documented(node):
    """What a reader is told: the definition itself, and the public methods of a class."""
    yield node
    if isinstance(node, ast.ClassDef):
        bases = [base for base in node.bases if ast.unparse(base) in ("_Ranks",)]
        inner = list(node.body)
        for base in bases:
            inner += next(
                one.body
                for one in parsed("torch.py").body
                if isinstance(one, ast.ClassDef) and one.name == base.id
            )
        for method in inner:
            if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                yield method


def prose(node):
    """The doc string as Markdown: paragraphs on one line each, examples as they are."""
    text = ast.get_docstring(node) or ""
    out = []
    for part in re.split(r"\n\s*\n", text):
        if part.lstrip().startswith(">>>"):
            out.append("```pycon\n" + textwrap.dedent(part) + "\n```")
        elif part.startswith("    "):
            out.append("```text\n" + textwrap.dedent(part) + "\n```")
        elif part.startswith("- "):
            out.append(re.sub(r"\n +", " ", part))
        else:
            out.append(" ".join(part.split()))
    return "\n\n".join(one for one in out if one)


def signature(node, name):
    """How it is called."""
    call = node
    if isinstance(node, ast.ClassDef):
        made = [one for one in node.body if getattr(one, "name", "") in ("__new__", "__init__")]
        if not made:
            fields = [ast.unparse(one) for one in node.body if isinstance(one, ast.AnnAssign)]
            return re.sub(r"'([^']*)'", r"\1", f"{name}({', '.join(fields)})") if fields else name
        call = made[0]
        if ast.get_docstring(call) is None and re.search(r"\b_[A-Z]", ast.unparse(call.args)):
            return name  # It is not the reader who makes it.
    arguments = re.sub(r"^(self|cls)(, )?", "", ast.unparse(call.args))
    returned = "" if isinstance(node, ast.ClassDef) or node.returns is None else ast.unparse(node.returns)
    arrow = f" -> {returned}" if returned else ""
    # Names of types are quoted, and defaults that are words.
    return re.sub(r"(='[^']*')|'([^']*)'", lambda one: one[1] or one[2], f"{name}({arguments}){arrow}")


def is_property(node):
    return any(ast.unparse(one) == "property" for one in getattr(node, "decorator_list", []))


def wrapped(text):
    """Lines of at most 120 characters, but for code."""
    if text.startswith("```"):
        return text
    fill = textwrap.TextWrapper(120, break_long_words=False, break_on_hyphens=False)
    items = text.split("\n") if text.startswith("- ") else [text]
    fill.subsequent_indent = "  " if text.startswith("- ") else ""
    return "\n".join(fill.fill(item) for item in items)


def item(name, node):
    """A name and what is said of it, in a list."""
    said = " ".join(prose(node).split())
    return wrapped(f"- `{name}`: {said}" if said else f"- `{name}`")


def reference():
    """The section, from its heading on."""
    out = [BEGIN, "Generated from the stubs by `python python/tests/reference.py`.\n"]
    errors = []
    for module, nodes in definitions():
        for node in nodes:
            if node.name.endswith("Error"):
                errors.append(node)
                continue
            out += [f"### `{module}.{node.name}`\n", f"```text\n{signature(node, node.name)}\n```\n"]
            out += [f"{wrapped(part)}\n" for part in prose(node).split("\n\n")]
            for method in list(documented(node))[1:]:
                name = method.name if is_property(method) else signature(method, method.name)
                out.append(item(name, method))
            if out[-1].startswith("- "):
                out.append("")
    out += ["### Exceptions", ""]
    out += [item(f"gradwire.{node.name}", node) for node in errors]
    return "\n".join(out) + "\n"


def page():
    """The page with the section as it should be; it is the last one."""
    text = PAGE.read_text(encoding="utf-8")
    return text[: text.index(BEGIN)] + reference() if BEGIN in text else text + "\n" + reference()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
