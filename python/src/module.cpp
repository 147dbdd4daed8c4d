// The Python module zero._zero: Engine, Mesh, GatherScope and lazily for torch.nn.Module. Whatever may wait
// for other ranks or computes for long lets other Python threads run.

#include <torch/csrc/utils/pybind.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mirror.h"
#include "options.h"
#include "zero/config.h"
#include "zero/engine.h"
#include "zero/error.h"
#include "zero/from_config.h"
#include "zero/lazy.h"
#include "zero/mesh.h"

namespace zero::python {
namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

namespace {

struct Optimizer {
  OptimizerSpec spec;
};

class PyEngine {
 public:
  PyEngine(py::object module, const OptimizerSpec& spec, const EngineOptions& options, const Mesh& mesh)
      : mirror_(std::move(module)) {
    const py::gil_scoped_release no_gil;
    engine_ = std::make_unique<Engine>(mirror_.module(), spec, options, mesh);
  }
  ~PyEngine() {
    const py::gil_scoped_release no_gil;
    engine_.reset();
  }
  PyEngine(const PyEngine&) = delete;
  PyEngine& operator=(const PyEngine&) = delete;

  Engine& engine() { return *engine_; }

  py::object forward(const py::function& fn, const py::args& args, const py::kwargs& kwargs) {
    return engine_->forward([&] { return fn(*args, **kwargs); });
  }
  std::string save(const std::string& directory, const std::string& metadata, int keep_last) {
    mirror_.collect_buffers();
    const py::gil_scoped_release no_gil;
    return engine_->save(directory, metadata, keep_last).string();
  }

 private:
  Mirror mirror_;
  std::unique_ptr<Engine> engine_;
};

std::unique_ptr<PyEngine> from_config(py::object module, const std::string& json, const Mesh& mesh) {
  const int ranks = mesh.group("dp").size();
  const Config config = resolve(parse_config(json, "config"), ranks);
  EngineOptions options = zero::engine_options_of(config, ranks);
  place_states(options, config, mesh);
  return std::make_unique<PyEngine>(std::move(module), zero::optimizer_of(config), options, mesh);
}

// `with zero.GatherScope(engine): ...`
class PyGatherScope {
 public:
  PyGatherScope(std::shared_ptr<PyEngine> engine, std::optional<std::vector<std::string>> names, bool modify)
      : engine_(std::move(engine)),
        names_(std::move(names)),
        access_(modify ? Access::Modify : Access::Read) {}

  void enter() {
    require(!scope_, ErrorKind::Usage, "GatherScope", "it is open already");
    const py::gil_scoped_release no_gil;
    if (names_)
      scope_ = std::make_unique<GatherScope>(engine_->engine(), *names_, access_);
    else
      scope_ = std::make_unique<GatherScope>(engine_->engine(), access_);
  }
  void exit(const py::args&) {
    const py::gil_scoped_release no_gil;
    scope_.reset();
  }
  void broadcast(int root) {
    require(scope_ != nullptr, ErrorKind::Usage, "GatherScope", "it is not open",
            "use it in a with statement");
    const py::gil_scoped_release no_gil;
    scope_->broadcast(root);
  }

 private:
  std::shared_ptr<PyEngine> engine_;
  std::optional<std::vector<std::string>> names_;
  Access access_;
  std::unique_ptr<GatherScope> scope_;
};

void bind_errors(py::module_& m) {
  static py::handle error = py::exception<Error>(m, "Error", PyExc_RuntimeError).release();
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& thrown) {
      const py::object value = error(thrown.what());
      value.attr("kind") = std::string(to_string(thrown.kind()));
      PyErr_SetObject(error.ptr(), value.ptr());
    }
  });
}

void bind_mesh(py::module_& m) {
  py::class_<Mesh>(m, "Mesh", "The ranks of a job. See zero/mesh.h.")
      .def_static(
          "from_environment",
          [](double timeout_s) {
            MeshOptions options;
            options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
            const py::gil_scoped_release no_gil;
            return Mesh::from_environment(options);
          },
          py::arg("timeout_s") = 600.0,
          "Joins the job that the environment describes (torchrun, mpirun, srun, zero launch), or is alone.")
      .def_property_readonly("rank", &Mesh::rank)
      .def_property_readonly("size", &Mesh::size)
      .def_property_readonly("local_rank", &Mesh::local_rank)
      .def(
          "barrier", [](const Mesh& mesh) { mesh.world().barrier("Python"); }, NoGil());
}

void bind_results(py::module_& m) {
  py::class_<ClipResult>(m, "ClipResult")
      .def_readonly("norm_before", &ClipResult::norm_before)
      .def_readonly("coefficient", &ClipResult::coefficient)
      .def_readonly("norm_after", &ClipResult::norm_after);
  py::class_<StepResult>(m, "StepResult")
      .def_readonly("stepped", &StepResult::stepped)
      .def_readonly("lr", &StepResult::lr)
      .def_readonly("loss_scale", &StepResult::loss_scale)
      .def("skipped", &StepResult::skipped)
      .def("overflow", &StepResult::overflow)
      .def("clip", &StepResult::clip);
  py::class_<LocalValues>(m, "LocalValues")
      .def_readonly("begin", &LocalValues::begin)
      .def_readonly("values", &LocalValues::values);
  py::class_<EngineStats>(m, "EngineStats")
      .def_readonly("steps", &EngineStats::steps)
      .def_readonly("skipped_steps", &EngineStats::skipped_steps)
      .def_readonly("all_gathers", &EngineStats::all_gathers)
      .def_readonly("all_gather_elements", &EngineStats::all_gather_elements)
      .def_readonly("reduce_scatters", &EngineStats::reduce_scatters)
      .def_readonly("reduce_scatter_elements", &EngineStats::reduce_scatter_elements)
      .def_readonly("peak_resident_bytes", &EngineStats::peak_resident_bytes)
      .def_readonly("waited_s", &EngineStats::waited_s)
      .def("traffic_elements", &EngineStats::traffic_elements);
}

// A call of the engine's that takes no part of Python's.
template <class R, class... Args>
auto call(R (Engine::*method)(Args...)) {
  return
      [method](PyEngine& self, Args... args) { return (self.engine().*method)(std::forward<Args>(args)...); };
}
template <class R, class... Args>
auto call(R (Engine::*method)(Args...) const) {
  return
      [method](PyEngine& self, Args... args) { return (self.engine().*method)(std::forward<Args>(args)...); };
}

void bind_engine(py::module_& m) {
  using Backward = void (Engine::*)(const at::Tensor&);
  py::class_<PyEngine, std::shared_ptr<PyEngine>>(
      m, "Engine", "Shards a torch.nn.Module and trains it. See zero/engine.h.")
      .def(py::init([](py::object module, const Optimizer& optimizer, std::optional<Mesh> mesh,
                       const py::kwargs& fields) {
             const EngineOptions options = engine_options_of(fields);
             return std::make_shared<PyEngine>(std::move(module), optimizer.spec, options,
                                               mesh ? *mesh : Mesh::from_environment());
           }),
           py::arg("module"), py::arg("optimizer"), py::arg("mesh") = py::none())
      .def_static(
          "from_json",
          [](py::object module, const std::string& json, std::optional<Mesh> mesh) {
            return std::shared_ptr<PyEngine>(
                from_config(std::move(module), json, mesh ? *mesh : Mesh::from_environment()));
          },
          py::arg("module"), py::arg("json"), py::arg("mesh") = py::none())
      .def("forward", &PyEngine::forward, py::arg("fn"),
           "fn(*args, **kwargs), during which parameters may be read anywhere.")
      .def("backward", call(static_cast<Backward>(&Engine::backward)), NoGil(), py::arg("loss"))
      .def("backward_sum", call(&Engine::backward_sum), NoGil(), py::arg("loss_sum"), py::arg("weight"))
      .def("step", call(&Engine::step), NoGil())
      .def("abandon_pass", call(&Engine::abandon_pass), NoGil())
      .def("at_boundary", call(&Engine::at_boundary))
      .def_property("learning_rate", call(&Engine::learning_rate), call(&Engine::set_learning_rate))
      .def("full_parameter", call(&Engine::full_parameter), NoGil(), py::arg("name"))
      .def("full_gradient", call(&Engine::full_gradient), NoGil(), py::arg("name"))
      .def("full_optimizer_state", call(&Engine::full_optimizer_state), NoGil(), py::arg("name"),
           py::arg("kind"))
      .def("local_parameter", call(&Engine::local_parameter), py::arg("name"))
      .def("local_gradient", call(&Engine::local_gradient), py::arg("name"))
      .def("set_full_parameter", call(&Engine::set_full_parameter), NoGil(), py::arg("name"),
           py::arg("values"))
      .def("parameter_names", call(&Engine::parameter_names))
      .def("schedule", call(&Engine::schedule))
      .def("stats", call(&Engine::stats))
      .def("save", &PyEngine::save, py::arg("directory"), py::arg("metadata") = "{}",
           py::arg("keep_last") = 0, "Writes directory/step-NNNNNNNN, whole or not at all; returns its path.")
      .def(
          "load",
          [](PyEngine& self, const std::string& checkpoint) { return self.engine().load(checkpoint); },
          NoGil(), py::arg("checkpoint"),
          "Restores what save() wrote, on any number of ranks; returns its metadata.");

  py::class_<PyGatherScope>(m, "GatherScope", "While it is open, parameters are whole on every rank.")
      .def(py::init<std::shared_ptr<PyEngine>, std::optional<std::vector<std::string>>, bool>(),
           py::arg("engine"), py::arg("names") = py::none(), py::arg("modify") = false)
      .def(
          "__enter__",
          [](PyGatherScope& self) -> PyGatherScope& {
            self.enter();
            return self;
          },
          py::return_value_policy::reference_internal)
      .def("__exit__", &PyGatherScope::exit)
      .def("broadcast", &PyGatherScope::broadcast, py::arg("root"));
}

}  // namespace

PYBIND11_MODULE(_zero, m) {
  bind_errors(m);
  bind_mesh(m);
  bind_results(m);
  py::class_<Optimizer>(m, "Optimizer").def("__repr__", [](const Optimizer& self) {
    return "zero." + std::string(name_of(self.spec));
  });
  m.def(
      "optimizer",
      [](const std::string& type, const py::kwargs& numbers) {
        return Optimizer{optimizer_of(type, numbers)};
      },
      py::arg("type"));
  m.def("optimizer_names", &optimizer_names);
  m.def(
      "lazily", [](const py::function& fn) { return lazily([&] { return fn(); }); }, py::arg("fn"));
  m.def(
      "materialize",
      [](py::object module) {
        Mirror mirror(std::move(module));
        materialize(mirror.module());
      },
      py::arg("module"));
  bind_engine(m);
}

}  // namespace zero::python
