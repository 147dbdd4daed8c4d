"""Tests of the Python module: `./dev python`. Those of several ranks start themselves by `zero launch` (ZERO_TOOL names the program)."""
import os
import subprocess
import sys
import tempfile
import unittest

import torch
import zero

HERE = os.path.dirname(os.path.abspath(__file__))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(50, 16)
        self.blocks = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
                                           for _ in range(3)])
        self.norm = torch.nn.BatchNorm1d(16)
        self.register_buffer("seen", torch.zeros(2))
        self.head = torch.nn.Linear(16, 50, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        h = self.words(ids)
        for block in self.blocks:
            h = h + block(h)
        self.seen = self.seen + 1  # another tensor each time
        return self.head(self.norm(h.flatten(0, 1)))


def loss_of(model, ids):
    return torch.nn.functional.cross_entropy(model(ids[:, :-1]), ids[:, 1:].flatten())


def batch(step, rank=0):
    return torch.randint(0, 50, (4, 9), generator=torch.Generator().manual_seed(100 * step + rank))


def train(engine, model, steps, mesh):
    for step in steps:
        ids = batch(step, mesh.rank)
        engine.backward(engine.forward(lambda: loss_of(model, ids)))
        result = engine.step()
        assert result.stepped and not result.skipped()
    return result


def values(engine):
    return {name: engine.full_parameter(name) for name in engine.parameter_names()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


class OneRank(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        self.mesh = zero.Mesh.from_environment()

    def test_wrong_arguments_are_named(self):
        with self.assertRaisesRegex(TypeError, "AdamW has no 'lrr'; it has lr"):
            zero.AdamW(lrr=1)
        with self.assertRaises(zero.Error) as raised:
            zero.AdamW(lr=-1)
        self.assertEqual(raised.exception.kind, "config")
        with self.assertRaisesRegex(TypeError, "zero.Engine has no 'stagee'; it has"):
            zero.Engine(Net(), zero.AdamW(), self.mesh, stagee=3)
        with self.assertRaisesRegex(zero.Error, "expected a torch.nn.Module"):
            zero.Engine([1], zero.AdamW(), self.mesh)

    def test_lazy_is_eager(self):
        eager = Net()
        torch.manual_seed(3)
        lazy = zero.lazily(Net)
        zero.materialize(lazy)
        self.assertTrue(same(eager.state_dict(), lazy.state_dict()))

    def test_units_are_elements_of_lists_and_ties_count_once(self):
        model = Net()
        engine = zero.Engine(model, zero.SGD(lr=0.1), self.mesh, stage=3)
        train(engine, model, range(1), self.mesh)
        self.assertEqual(len(engine.parameter_names()), len(dict(model.named_parameters())))
        self.assertIn("blocks.2", engine.schedule())

    def test_python_exceptions_pass_through_forward(self):
        model = Net()
        engine = zero.Engine(model, zero.SGD(lr=0.1), self.mesh)

        def fails():
            raise KeyError("mine")

        with self.assertRaisesRegex(KeyError, "mine"):
            engine.forward(fails)

    def test_scopes(self):
        model = Net()
        engine = zero.Engine(model, zero.SGD(lr=0.1), self.mesh, stage=3, dtype=torch.bfloat16)
        with zero.GatherScope(engine, ["blocks.0.0.weight"], modify=True), torch.no_grad():
            model.blocks[0][0].weight.fill_(0.5)
        self.assertTrue(torch.equal(engine.full_parameter("blocks.0.0.weight"), torch.full((32, 16), 0.5)))
        with self.assertRaisesRegex(zero.Error, "nothing"):
            zero.GatherScope(engine, ["nothing"]).__enter__()

    def test_a_configuration_and_a_resume(self):
        config = {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0, "bf16": {"enabled": True},
                  "zero_optimization": {"stage": 3}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "betas": [0.9, 0.95]}},
                  "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_max_lr": 1e-2}}}
        with tempfile.TemporaryDirectory() as folder:
            model = Net()
            engine = zero.engine_from_config(model, config, self.mesh)
            train(engine, model, range(2), self.mesh)
            path = engine.save(folder, '{"mine": 1}')
            train(engine, model, range(2, 4), self.mesh)
            other = Net()
            resumed = zero.engine_from_config(other, config, self.mesh)
            self.assertEqual(resumed.load(path), '{"mine":1}')
            self.assertEqual(other.seen.tolist(), [2, 2])  # the buffer that forward replaces
            train(resumed, other, range(2, 4), self.mesh)
            self.assertTrue(same(values(engine), values(resumed)))
        with self.assertRaisesRegex(zero.Error, "zero_optimization"):
            zero.engine_from_config(Net(), {"zero_optimisation": {"stage": 3}}, self.mesh)

    def test_a_buffer_of_another_shape_is_refused(self):
        model = Net()
        engine = zero.Engine(model, zero.SGD(lr=0.1), self.mesh)
        model.seen = torch.zeros(3)
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(zero.Error, "another shape"):
            engine.save(folder)


class Ranks(unittest.TestCase):
    def launch(self, *arguments):
        done = subprocess.run([os.environ["ZERO_TOOL"], "launch", "--ranks", "2", "--", sys.executable, *arguments],
                              capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_stages_and_ranks_of_a_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            self.launch(os.path.abspath(__file__), "two-ranks", folder)
            mesh = zero.Mesh.from_environment()
            model = Net()
            engine = zero.Engine(model, zero.AdamW(lr=1e-2), mesh, stage=3)
            engine.load(os.path.join(folder, "step-00000003"))
            self.assertTrue(same(values(engine), torch.load(os.path.join(folder, "values.pt"), weights_only=True)))

    @unittest.skipUnless("transformers" in sys.modules or __import__("importlib.util").util.find_spec("transformers"), "no transformers")
    def test_transformers(self):
        for arguments in (["--lazy"], ["--stage", "1"]):
            lines = self.launch(os.path.join(HERE, "models.py"), *arguments).splitlines()
            self.assertEqual(len(lines), 15, lines)


def two_ranks(folder):
    """Stages 0 and 3 end with the same bits; a checkpoint of two ranks is left in the folder."""
    torch.set_num_threads(1)
    mesh = zero.Mesh.from_environment()
    ends = []
    for stage in (0, 3):
        torch.manual_seed(3)
        model = zero.lazily(Net)
        engine = zero.Engine(model, zero.AdamW(lr=1e-2), mesh, stage=stage, gradient_clipping=1.0)
        train(engine, model, range(3), mesh)
        ends.append(values(engine))
    assert same(*ends)
    engine.save(folder)
    if mesh.rank == 0:
        torch.save(ends[1], os.path.join(folder, "values.pt"))
    mesh.barrier()


if __name__ == "__main__":
    if sys.argv[1:2] == ["two-ranks"]:
        two_ranks(sys.argv[2])
    else:
        unittest.main()
