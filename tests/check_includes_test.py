"""The include rule's checker finds each kind of offence in a small made-up repository, and nothing in a clean one."""
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
from check_includes import Checker  # noqa: E402

CMAKE = """
zero_folder(base)
zero_folder(plan USES base LIBS json::json)
zero_folder(mesh TORCH USES base)
zero_folder(models TORCH USES base plan)
zero_folder(engine TORCH USES base plan mesh)
"""
CLEAN = {
    "include/zero/error.h": "#include <string>\n",
    "include/zero/plan.h": '#include "zero/error.h"\n',
    "include/zero/gpt2_shape.h": "#include <cstdint>\n",
    "include/zero/mesh.h": "#include <torch/types.h>\n",
    "include/zero/engine.h": '#include "zero/mesh.h"\n#include "zero/plan.h"\n',
    "include/zero/zero.h": '#include "zero/engine.h"\n#include "zero/gpt2_shape.h"\n',
    "src/base/error.cpp": '#include "zero/error.h"\n',
    "src/plan/plan.cpp": '#include "zero/plan.h"\n#include "traffic.h"\n#include "base/checked.h"\n',
    "src/plan/gpt2_shape.cpp": '#include "zero/gpt2_shape.h"\n',
    "src/plan/traffic.h": "",
    "src/base/checked.h": "",
    "src/mesh/mesh.cpp": '#include "zero/mesh.h"\n',
    "src/mesh/gloo/gloo.cpp": "#include <gloo/rendezvous/store.h>\n",
    "src/models/gpt2.cpp": '#include "zero/gpt2_shape.h"\n#include <torch/nn/module.h>\n',
    "src/engine/engine.cpp": '#include "zero/engine.h"\n#include "plan/traffic.h"\n',
    "examples/one.cpp": '#include "zero/engine.h"\n',
}


class CheckIncludes(unittest.TestCase):
    def problems(self, **changed):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder).resolve()
            (root / "CMakeLists.txt").write_text(CMAKE)
            for name, text in {**CLEAN, **changed.get("files", {})}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            return Checker(root).check()

    def assert_offence(self, name, include, wording):
        problems = self.problems(files={name: CLEAN.get(name, "") + f"#include {include}\n"})
        self.assertEqual(len(problems), 1, problems)
        self.assertRegex(problems[0], rf"^{name}:\d+: ")
        self.assertIn(wording, problems[0])

    def test_clean(self):
        self.assertEqual(self.problems(), [])

    def test_equal_names_in_one_folder(self):
        def unnamed(declaration, namespace="zero"):
            return f"namespace {namespace} {{\nnamespace {{\n\n{declaration}\n\n}}  // namespace\n}}\n"

        for declaration in ("constexpr int64_t kGrain = 1;", "class Mine : public Base {\n};", "struct Mine {\n};",
                            "enum class Mine { A };", "thread_local int mine = 0;"):
            twice = {"src/mesh/a.cpp": unnamed(declaration), "src/mesh/b.cpp": unnamed(declaration)}
            problems = self.problems(files=twice)
            self.assertEqual(len(problems), 1, declaration)
            self.assertRegex(problems[0], r"^src/mesh/b.cpp:4: .* is src/mesh/a.cpp's, too")
            elsewhere = {"src/mesh/a.cpp": unnamed(declaration), "src/plan/b.cpp": unnamed(declaration)}
            self.assertEqual(self.problems(files=elsewhere), [])
            other = {"src/mesh/a.cpp": unnamed(declaration), "src/mesh/b.cpp": unnamed(declaration, "zero::detail")}
            self.assertEqual(self.problems(files=other), [])

    def test_private_header_of_a_folder_not_used(self):
        self.assert_offence("src/mesh/mesh.cpp", '"plan/traffic.h"', "may include src/ folders mesh, base")

    def test_relative_path_into_another_folder(self):
        self.assert_offence("src/mesh/mesh.cpp", '"../plan/traffic.h"', "src/plan's")

    def test_torch_in_a_folder_without(self):
        self.assert_offence("src/plan/traffic.h", "<ATen/ATen.h>", "built without torch")

    def test_torch_through_a_public_header(self):
        self.assert_offence("src/plan/traffic.h", '"zero/mesh.h"', "zero/mesh.h -> torch/types.h")

    def test_public_header_of_a_folder_above(self):
        self.assert_offence("src/mesh/mesh.cpp", '"zero/engine.h"', "built on src/mesh")

    def test_model_that_knows_the_plan(self):
        self.assert_offence("src/models/gpt2.cpp", '"zero/plan.h"', "a model knows nothing of src/plan")

    def test_transport_header_elsewhere(self):
        self.assert_offence("src/mesh/mesh.cpp", "<gloo/context.h>", "src/mesh/gloo/ alone")

    def test_private_header_in_the_public_surface(self):
        self.assert_offence("include/zero/plan.h", '"plan/traffic.h"', "only public headers")

    def test_private_header_in_an_example(self):
        self.assert_offence("examples/one.cpp", '"plan/traffic.h"', "only public headers")

    def test_public_header_that_zero_h_lacks(self):
        problems = self.problems(files={"include/zero/extra.h": ""})
        self.assertEqual(len(problems), 1, problems)
        self.assertIn("include/zero/extra.h:1: zero/zero.h does not lead to", problems[0])

    def test_missing_public_header(self):
        self.assert_offence("src/mesh/mesh.cpp", '"zero/nothing.h"', "no public header")


if __name__ == "__main__":
    unittest.main()
