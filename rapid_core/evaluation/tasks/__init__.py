"""The tasks of an evaluation: what is asked, and what an answer is worth."""

from rapid_core.errors import BadLineError
from rapid_core.evaluation.tasks.loading import TASKS, load_tasks
from rapid_core.evaluation.tasks.task import Task, TaskOptions

__all__ = ["TASKS", "BadLineError", "Task", "TaskOptions", "load_tasks"]
