#include "train/progress.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/terminal.h"
#include "zero/plan_report.h"

namespace zero::training {
namespace {

template <class... Values>
std::string format(const char* pattern, Values... values) {
  std::array<char, 160> text{};
  const int size = std::snprintf(text.data(), text.size(), pattern, values...);
  return std::string(text.data(), std::clamp<int64_t>(size, 0, std::ssize(text) - 1));
}

int columns_of(std::FILE* out) {
  constexpr int kUsual = 80;
  const int columns = terminal_columns(out);
  return columns > 0 ? columns : kUsual;
}

}  // namespace

std::string duration_text(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "?";
  const auto all = static_cast<long long>(std::llround(seconds));
  if (all >= 3600) return format("%lldh%02lldm", all / 3600, all / 60 % 60);
  if (all >= 60) return format("%lldm%02llds", all / 60, all % 60);
  return format("%llds", all);
}

Progress::Progress(std::FILE* out, int64_t first_step, int64_t last_step, int64_t interval)
    : out_(out),
      terminal_(out != nullptr && ::isatty(::fileno(out)) == 1),
      first_step_(first_step),
      last_step_(last_step),
      interval_(std::max<int64_t>(1, interval)),
      begin_(Clock::now()),
      shown_at_(begin_),
      shown_step_(first_step) {}

Progress::~Progress() {
  if (out_ != nullptr && drawn_) std::fputs("\n", out_);
  if (out_ != nullptr) std::fflush(out_);
}

std::string bar_line(const std::vector<std::string>& fields, double done, int columns) {
  constexpr size_t kShortBar = 10, kLongBar = 20, kFrame = 3;  // "[", "] "
  constexpr size_t kBeforeBar = 3;                             // fields that matter more than the bar
  const size_t room = std::max(1, columns);
  std::string text = fields.front().substr(0, room);
  size_t bar = 0, shown = 1;
  const auto fits = [&](size_t more) { return text.size() + (bar ? bar + kFrame : 0) + more <= room; };
  for (; shown < fields.size(); ++shown) {
    if (shown == kBeforeBar && fits(kShortBar + kFrame)) bar = kShortBar;
    if (!fits(fields[shown].size() + 2)) break;
    text += "  " + fields[shown];
  }
  if (bar == kShortBar && shown == fields.size() && fits(kLongBar - kShortBar)) bar = kLongBar;
  if (bar == 0) return text;
  const auto full = static_cast<size_t>(static_cast<double>(bar) * std::clamp(done, 0.0, 1.0));
  return "[" + std::string(full, '=') + std::string(bar - full, ' ') + "] " + text;
}

namespace {

std::string skipped_text(const StepReport& report) {
  if (!report.skipped) return "";
  std::string text = "skipped: the gradient is not finite";
  if (!report.overflow.empty()) text += ": " + report.overflow;
  if (report.loss_scale != 1) text += format(", loss scale %g", report.loss_scale);
  return text;
}

}  // namespace

double Progress::eta_s(const StepReport& report) const {
  const double elapsed_s = std::chrono::duration<double>(Clock::now() - begin_).count();
  return elapsed_s / static_cast<double>(report.step - first_step_) *
         static_cast<double>(last_step_ - report.step);
}

namespace {

/// What is where, beside what the process holds.
std::string memory_text(const StepReport& report) {
  std::string text = "memory " + human_bytes(report.resident_bytes);
  for (const Tier tier : {Tier::Host, Tier::Disk})
    if (const int64_t bytes = report.memory.bytes_in(tier); bytes > 0)
      text += ", " + std::string(to_string(tier)) + " " + human_bytes(bytes);
  const int64_t moved = report.disk.read_bytes + report.disk.written_bytes;
  if (moved > 0 && report.step_s > 0)
    text += format(" at %.2f GB/s", static_cast<double>(moved) / report.step_s / 1e9);
  return text;
}

}  // namespace

Progress::Fields Progress::fields_of(const StepReport& report) const {
  return {.step = format("step %lld/%lld", static_cast<long long>(report.step),
                         static_cast<long long>(last_step_)),
          .loss = format("loss %.4f", report.loss),
          .eta = "ETA " + duration_text(eta_s(report)),
          .skipped = skipped_text(report),
          .speed = human_count(std::llround(tokens_per_s_)) + " tokens/s",
          .lr = format("lr %.2e", report.lr),
          .grad_norm = format("grad norm %.3f", report.grad_norm),
          .memory = memory_text(report)};
}

std::string Progress::log_line(const StepReport& report) const {
  const Fields f = fields_of(report);
  std::string text;
  for (const std::string* field :
       {&f.step, &f.loss, &f.lr, &f.grad_norm, &f.speed, &f.memory, &f.eta, &f.skipped})
    if (!field->empty()) text += (text.empty() ? "" : "  ") + *field;
  return text;
}

void Progress::draw(const StepReport& report) {
  const Fields f = fields_of(report);
  std::vector<std::string> fields = {f.step, f.loss, f.eta};
  for (const std::string* field : {&f.skipped, &f.speed, &f.lr, &f.grad_norm, &f.memory})
    if (!field->empty()) fields.push_back(*field);
  const double done =
      static_cast<double>(report.step) / static_cast<double>(std::max<int64_t>(1, last_step_));
  // A line of all columns would put some terminals' cursor on the next one.
  std::fputs(("\r" + bar_line(fields, done, columns_of(out_) - 1) + "\x1b[K").c_str(), out_);
  std::fflush(out_);
  drawn_ = true;
}

void Progress::step(const StepReport& report) {
  if (out_ == nullptr) return;
  constexpr double kRedrawSeconds = 0.1;
  const auto now = Clock::now();
  const double since = std::chrono::duration<double>(now - shown_at_).count();
  const bool last = report.step == last_step_, first = report.step == first_step_ + 1;
  const bool due = terminal_ ? since >= kRedrawSeconds : report.step % interval_ == 0 || report.skipped;
  if (!due && !first && !last) return;
  // Steps are equally large, so this step's tokens stand for all since the last line.
  const double per_step = report.tokens_per_s * report.step_s;
  tokens_per_s_ = per_step * static_cast<double>(report.step - shown_step_) / std::max(since, 1e-9);
  shown_at_ = now;
  shown_step_ = report.step;
  if (terminal_) {
    draw(report);
    return;
  }
  std::fputs((log_line(report) + "\n").c_str(), out_);
  std::fflush(out_);
}

void Progress::note(const std::string& text) {
  if (out_ == nullptr) return;
  std::fputs(((drawn_ ? "\r" : "") + text + (drawn_ ? "\x1b[K" : "") + "\n").c_str(), out_);
  std::fflush(out_);
  drawn_ = false;
}

}  // namespace zero::training
